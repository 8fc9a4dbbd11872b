//! The defects that were fixed, each reverted by a change of one place, and other deliberate
//! mistakes.

/// A change of the product at one place, which should break something.
#[derive(Debug, Clone, Copy)]
pub struct Defect {
    /// What is wrong with it, in one plain sentence, with the number in the review if it has one.
    pub name: &'static str,
    /// The workload of the simulator that should notice it. Empty if only tests can: the template
    /// does not allow the setting that it needs, or recovery repairs it after some minutes.
    pub workload: &'static str,
    pub file: &'static str,
    /// The text in the file: an expression, a condition or a statement with its semicolon. It
    /// occurs once.
    pub text: &'static str,
    /// What stands in its place while the mutant is on: of the same type.
    pub instead: &'static str,
}

pub const DEFECTS: &[Defect] = &[
    // Intents and their guards.
    Defect {
        name: "D1: a guard remembers only one other hold when it takes one",
        workload: "windows",
        file: "shared/domain/src/intents/guard.rs",
        text: "current().cloned().collect()",
        instead: "current().last().cloned().into_iter().collect()",
    },
    Defect {
        name: "D2: a guard keeps a hold that was released",
        workload: "windows",
        file: "shared/domain/src/intents/guard.rs",
        text: "(holds.len() < self.holds.len()).then(|| self.with(holds, now))",
        instead: "None",
    },
    Defect {
        name: "D3: a hold does not know the request of its own caller, who is refused as another one",
        workload: "windows",
        file: "shared/domain/src/intents/rows.rs",
        text: "self.body_hash.clone()",
        instead: "String::new()",
    },
    Defect {
        name: "D24: a rolling window counts from the acceptance of a message, and not from its send",
        workload: "windows",
        file: "shared/domain/src/messages/life.rs",
        text: "self.intent.as_ref().filter(|intent| intent.rolling && intent.guard.is_some())",
        instead: "None",
    },
    Defect {
        name: "An attempt does not wait for the window of another send: two sends in one window",
        workload: "windows",
        file: "shared/domain/src/intents/guard.rs",
        text: "!other.pending && other.overlaps(hold)",
        instead: "false",
    },
    // Accepting messages.
    Defect {
        name: "A message is stored although there is one with its id",
        workload: "outbound",
        file: "shared/platform/src/messages/accept.rs",
        text: "Write::put(&self.table, keys::message(&row.id), &row)?.when(Condition::Absent)",
        instead: "Write::put(&self.table, keys::message(&row.id), &row)?",
    },
    Defect {
        name: "D15: a key that is used again after its message has expired is an error of the server",
        workload: "",
        file: "shared/platform/src/messages/accept.rs",
        text: "self.existing_or(invocation, new, Accepted::KeyReused).await",
        instead: "match self.existing_or(invocation, new, Accepted::KeyReused).await? { \
            Accepted::KeyReused => Err(StoreError::Corrupt(\"a hold of a message that is gone\")), \
            accepted => Ok(accepted), \
        }",
    },
    // Attempts and their outcomes.
    Defect {
        name: "The claim of an attempt does not check that the row is as it was read",
        workload: "outbound",
        file: "shared/platform/src/delivery/claim.rs",
        text: "Write::of_change(tables.own, before, &after)?",
        instead: "Write::changes(tables.own, before.key(), before, &after)?",
    },
    Defect {
        name: "The claim of an attempt at a message does not check the suppression list",
        workload: "outbound",
        file: "shared/domain/src/messages/life.rs",
        text: "vec![Gate::NotSuppressed { channel: self.channel, to: self.to.clone(), sender: sender.to_owned() }]",
        instead: "Vec::new()",
    },
    Defect {
        name: "A sender that went on after the deadline of its attempt still calls",
        workload: "outbound",
        file: "shared/platform/src/delivery/once.rs",
        text: "Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(invocation.time_left())",
        instead: "providers.config.timeout",
    },
    Defect {
        name: "An outcome is written although its attempt is not under way any more",
        workload: "outbound",
        file: "shared/domain/src/delivery/transitions.rs",
        text: "!self.is_sending(attempt)",
        instead: "false",
    },
    Defect {
        name: "An attempt of unknown outcome ends as failed",
        workload: "outbound",
        file: "shared/domain/src/delivery/transitions.rs",
        text: "self.with_doubt().over(State::Unknown, Some(code))",
        instead: "self.unsent(State::Failed, Some(code))",
    },
    Defect {
        name: "A cancel answers that the message is canceled although an attempt is under way",
        workload: "outbound",
        file: "shared/domain/src/delivery/transitions.rs",
        text: "(Cancel::InFlight, Some(Self { recalled: Some(self.attempt), ..self.clone() }))",
        instead: "(Cancel::Now, Some(Self { recalled: Some(self.attempt), ..self.clone() }))",
    },
    Defect {
        name: "D6: an attempt that was recalled and was not sent is queued again",
        workload: "conversations",
        file: "shared/domain/src/delivery/transitions.rs",
        text: "(self.recalled, next.doubts.is_empty())",
        instead: "(None, next.doubts.is_empty())",
    },
    Defect {
        name: "D12: proof that a message was sent does not move it from FAILED",
        workload: "outbound",
        file: "shared/domain/src/delivery/transitions.rs",
        text: "matches!(self.state, State::Canceled | State::Suppressed | State::Expired | State::Deduped)",
        instead: "matches!(self.state, \
            State::Canceled | State::Suppressed | State::Expired | State::Deduped | State::Failed)",
    },
    // Rate limits.
    Defect {
        name: "D11: a slot is used however late",
        workload: "limits",
        file: "shared/domain/src/senders/limiter.rs",
        text: "time_us > slot.until_us",
        instead: "false",
    },
    Defect {
        name: "D21: the slot of the sender is lost if the address has none",
        workload: "limits",
        file: "shared/platform/src/limiter.rs",
        text: "self.release(invocation, &held).await?;
                        continue;",
        instead: "continue;",
    },
    Defect {
        name: "Two senders that find a bucket idle take the same slot",
        workload: "limits",
        file: "shared/domain/src/senders/limiter.rs",
        text: "Bound::AtMost(FREE_AT_US, from_us)",
        instead: "Bound::AtMost(FREE_AT_US, i64::MAX)",
    },
    // Suppressions.
    Defect {
        name: "D18: a late removal from the suppression list also removes what was suppressed after it",
        workload: "outbound",
        file: "shared/platform/src/suppressions.rs",
        text: "Condition::all([is(SuppressionStatus::Active)?, Condition::is_number(\"as_of\", row.as_of)])",
        instead: "is(SuppressionStatus::Active)?",
    },
    Defect {
        name: "A removal that was frozen removes what was suppressed after its caller had repeated it",
        workload: "outbound",
        file: "shared/platform/src/suppressions.rs",
        text: "is_after_request(at, invocation.now, invocation.current())",
        instead: "false",
    },
    // Conversations.
    Defect {
        name: "D5: a message of a person that is delivered again does not cancel the reply that waits",
        workload: "conversations",
        file: "shared/platform/src/conversations/receive.rs",
        text: "self.get(invocation, &received.conversation()).await?",
        instead: "None",
    },
    Defect {
        name: "D8: what a person had seen compares the provider's time with our time of arrival",
        workload: "conversations",
        file: "shared/domain/src/conversations/course.rs",
        text: "at.zip(self.last_sent_at).is_some_and(is_later)",
        instead: "at.zip(self.last_at).is_some_and(is_later)",
    },
    Defect {
        name: "D9: the echo of our own message is counted as a person's, unless an attempt is under way",
        workload: "conversations",
        file: "shared/platform/src/conversations/receive.rs",
        text: "match delivery.state {
        State::Sending | State::Unknown => true,
        State::Queued => !delivery.doubts.is_empty(),
        State::Sent => delivery.provider_id.is_none() && is_recent(delivery.sent_at),
        State::Failed => is_recent(row.declared_unsent_at()),
        _ => false,
    }",
        instead: "delivery.state == State::Sending",
    },
    Defect {
        name: "D16: unanswered messages expire",
        workload: "absences",
        file: "shared/domain/src/conversations/rows.rs",
        text: "(next > until).then_some(KeptMessages { row, until: next, is_last: next == last })",
        instead: "None",
    },
    Defect {
        name: "D17: a batch whose withheld reply is not needed any more is never finished",
        workload: "conversations",
        file: "shared/platform/src/conversations.rs",
        text: "before.course.phase == Phase::Replied && after.course.phase == Phase::Idle",
        instead: "false",
    },
    Defect {
        name: "D22: a batch takes all messages, however many they are",
        workload: "conversations",
        file: "shared/domain/src/conversations/batch.rs",
        text: "count < MOST_MESSAGES && bytes <= MOST_BYTES",
        instead: "true",
    },
    // Downsells.
    Defect {
        name: "The claim of an offer does not check that the charges are as they were read",
        workload: "downsells",
        file: "shared/domain/src/downsells/transitions.rs",
        text: "vec![
            Gate::Unchanged { key, fence },
            Gate::NotSuppressed { channel: Channel::Telegram, to, sender: sender.to_owned() },
        ]",
        instead: "vec![Gate::NotSuppressed { channel: Channel::Telegram, to, sender: sender.to_owned() }]",
    },
    Defect {
        name: "D20: one charge too many takes the place of another one, whose offers are canceled",
        workload: "downsells",
        file: "shared/domain/src/downsells/charges.rs",
        text: "next.open.len() < MOST_OPEN",
        instead: "if next.open.len() >= MOST_OPEN { next.open.pop_first(); } true",
    },
    Defect {
        name: "D20: transactions of two gateways with the same id are one",
        workload: "downsells",
        file: "shared/domain/src/downsells/charges.rs",
        text: "if gateway == DEFAULT_GATEWAY { id.to_owned() } else { format!(\"{gateway} {id}\") }",
        instead: "id.to_owned()",
    },
    // Mailings.
    Defect {
        name: "D13: a file name in composed and in decomposed form is two mailings",
        workload: "",
        file: "shared/domain/src/unicode.rs",
        text: "ComposingNormalizerBorrowed::new_nfc().normalize(&visible(name)).into_owned()",
        instead: "visible(name)",
    },
    Defect {
        name: "A mail of unknown outcome is sent again",
        workload: "mailings",
        file: "shared/domain/src/mailings/entry.rs",
        text: "self.delivery.verdict(Window::default(), outcome, UnknownPolicy::Hold, now, jitter)",
        instead: "self.delivery.verdict(Window::default(), outcome, UnknownPolicy::Resend, now, jitter)",
    },
    Defect {
        name: "A shard that was enqueued during its turn is released as if nothing waited",
        workload: "",
        file: "shared/domain/src/mailings/shard.rs",
        text: "self.work.emits != worked.work.emits",
        instead: "false",
    },
    Defect {
        name: "The rest of a batch of inserts of which the store made a part is dropped",
        workload: "mailings",
        file: "shared/platform/src/store/many.rs",
        text: "left = again;",
        instead: "return Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(Insert::New)).collect());",
    },
    // Ingest.
    Defect {
        name: "D4: an input whose time was ahead of our clock is newer whenever it comes again",
        workload: "ingest",
        file: "shared/domain/src/ingest/source_times.rs",
        text: "next.times_ahead.push(said);",
        instead: "",
    },
    Defect {
        name: "An older version of an item replaces a newer one",
        workload: "ingest",
        file: "shared/domain/src/ingest/source_times.rs",
        text: "self.source_time.is_some_and(|stored| said <= stored)",
        instead: "false",
    },
    Defect {
        name: "An importer of a backfill writes its progress although it has lost its lease",
        workload: "ingest",
        file: "shared/domain/src/ingest/backfill/row.rs",
        text: "Fence::same(&json!({
            \"version\": self.version,
            \"lease_owner\": lease.map(|lease| &lease.lease_owner),
            \"lease_epoch\": lease.map(|lease| lease.lease_epoch),
            \"lease_until\": lease.map(|lease| lease.lease_until),
        }))",
        instead: "Fence::same(&json!({\"backfill_id\": self.backfill_id}))",
    },
    // What all capabilities share: the store, the outbox and recovery.
    Defect {
        name: "A change that lost its race counts as done",
        workload: "outbound",
        file: "shared/platform/src/store/change.rs",
        text: "self.write_all(invocation, Write::of_change(table, &before, &after)?, with).await?",
        instead: "self.write_all(invocation, Write::of_change(table, &before, &after)?, with).await?; Made::Done",
    },
    Defect {
        name: "The rest of a batch of reads of which the store answered a part is dropped",
        workload: "downsells",
        file: "shared/platform/src/store/many.rs",
        text: "left = answer.unprocessed_keys.unwrap_or_default();",
        instead: "left = HashMap::new();",
    },
    Defect {
        name: "The relay acknowledges a batch of which the queue took only a part",
        workload: "outbound",
        file: "shared/platform/src/outbox.rs",
        text: "answer.failed().iter().min_by_key(|failed| place(failed))",
        instead: "None",
    },
    Defect {
        name: "Recovery writes a message although it has changed since it was read",
        workload: "outbound",
        file: "shared/platform/src/messages/life.rs",
        text: "self.store.commit(invocation, &self.table, &row, after, with).await?",
        instead: "{ \
            let write = crate::store::Write::changes(&self.table, keys::message(&row.id), &row, after)?; \
            let written = self.store.write_with(invocation, write, with).await?; \
            matches!(written, crate::store::Written::New | crate::store::Written::Mine) \
        }",
    },
    Defect {
        name: "D19: the tokens of writes repeat when Lambda runs a request again",
        workload: "",
        file: "shared/platform/src/invocation.rs",
        text: "format!(\"{}/{:08x}/{}\", self.request_id, self.run, self.writes.fetch_add(1, Ordering::Relaxed))",
        instead: "format!(\"{}/{:08x}/{}\", self.request_id, 0, self.writes.fetch_add(1, Ordering::Relaxed))",
    },
];
