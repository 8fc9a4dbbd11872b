use super::*;

const MOST_RECEIVES: u32 = 1_000;

fn queue(name: &str, redrive: Option<(String, u32)>) -> Queue {
    let (visibility, retention) = (Duration::from_secs(30), Duration::from_secs(1_209_600));
    Queue { logical_id: name.into(), name: name.into(), visibility, delay: Duration::ZERO, retention, redrive }
}

async fn started(receives: u32) -> (Queues, Clock) {
    let clock = Clock::new(0);
    let all = [queue("q", Some(("dead".to_owned(), receives))), queue("dead", None)];
    let queues = Queues::start(&all, "127.0.0.1", 1, clock.clone(), Activity::default()).await.unwrap();
    (queues, clock)
}

/// Acts as a function that wants a retry after some time: it changes the visibility timeout and
/// fails the message.
async fn fail_for(queues: &Queues, message: &Value, seconds: u64) {
    let receipt = &message["ReceiptHandle"];
    let request = json!({"QueueUrl": url("q"), "ReceiptHandle": receipt, "VisibilityTimeout": seconds});
    assert!(queues.handle("ChangeMessageVisibility", to_body(&request)).await.status().is_success());
    queues.settle("q", std::slice::from_ref(message), |_| true).await.unwrap();
}

async fn take(queues: &Queues) -> Value {
    queues.receive("q").await.unwrap();
    let mut taken = queues.take_ready("q", 10, false);
    assert_eq!(taken.len(), 1);
    taken.remove(0)
}

#[tokio::test]
async fn a_failed_message_is_hidden_for_exactly_the_timeout_that_its_function_set() {
    let (queues, clock) = started(MOST_RECEIVES).await;
    queues.put("q", "a").await.unwrap();
    // Shorter and longer than the timeout of the queue.
    for seconds in [5, 43_200] {
        let message = take(&queues).await;
        let before = clock.now_ms();
        fail_for(&queues, &message, seconds).await;
        let asked = i64::try_from(seconds).unwrap() * 1_000;
        let due = queues.next_due("q").unwrap();
        assert!((before + asked..=clock.now_ms() + asked).contains(&due));
        let waits = Counts { visible: 0, moving: 0, waiting: 1, between: 0 };
        assert_eq!(queues.counts("q").await.unwrap(), waits, "the message only waits for its time");
        clock.advance(Duration::from_secs(seconds - 2));
        queues.wake("q").await;
        assert_eq!(queues.counts("q").await.unwrap(), waits);
        clock.advance(Duration::from_secs(2));
        queues.wake("q").await;
        assert_eq!(queues.counts("q").await.unwrap(), Counts { visible: 1, ..Counts::default() });
    }
}

#[tokio::test]
async fn a_message_goes_to_the_dead_letter_queue_after_its_last_receive_and_not_before() {
    let (queues, clock) = started(MOST_RECEIVES).await;
    queues.put("q", "a").await.unwrap();
    for receives in 1..=MOST_RECEIVES {
        let message = take(&queues).await;
        assert_eq!(message["Attributes"]["ApproximateReceiveCount"], receives.to_string());
        fail_for(&queues, &message, 60).await;
        clock.advance(Duration::from_secs(60));
        queues.wake("q").await;
    }
    queues.receive("q").await.unwrap();
    assert!(!queues.has_ready("q"));
    assert_eq!(queues.counts("dead").await.unwrap().visible, 1);
}
