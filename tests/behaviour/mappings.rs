//! Event source mappings of queues: the number of concurrent batches, several queues of one
//! function, and messages that a function hides for a time.

use std::time::Duration;

use reqwest::Method;
use serde_json::json;
use umavez_local::functions::LogLine;
use umavez_tests::{Expected, Setup, World, play_with};

/// Returns a setup in which the probe's worker reads these queues, with one message per batch and
/// at most two batches at a time.
fn with_queues(queues: &[&str], receives: u32) -> Setup {
    let probe = include_str!("../fixtures/probe.yaml");
    let (mut sources, mut events) = (String::new(), String::new());
    for queue in queues {
        sources += &format!(
            "
  {queue}:
    Type: AWS::SQS::Queue
    Properties:
      QueueName: {}
      VisibilityTimeout: 60
      RedrivePolicy: {{deadLetterTargetArn: !GetAtt WorkDlq.Arn, maxReceiveCount: {receives}}}",
            queue.to_lowercase()
        );
        events += &format!(
            "
        {queue}:
          Type: SQS
          Properties:
            Queue: !GetAtt {queue}.Arn
            BatchSize: 1
            ScalingConfig: {{MaximumConcurrency: 2}}
            FunctionResponseTypes: [ReportBatchItemFailures]"
        );
    }
    let whole = probe.replace("\n  WorkDlq:", &format!("{sources}\n  WorkDlq:"));
    let whole = whole.replace("\n        Work:\n", &format!("{events}\n        Work:\n"));
    assert_ne!(whole, probe);
    Setup::of_template(&whole)
}

async fn put(world: &World, queue: &str, message: serde_json::Value) {
    world.stack.queues().put(queue, &message.to_string()).await.expect("put");
}

fn hidden(world: &World) -> usize {
    world.events("RECORD_POSTPONED").iter().filter(|line| line["outcome"] == "hidden").count()
}

#[tokio::test]
async fn a_mapping_runs_at_most_its_maximum_of_concurrent_batches() {
    let expected = Expected { waiting: 5, ..Expected::default() };
    play_with(with_queues(&["Narrow"], 3).expecting(expected), async |world| {
        for _ in 0..5 {
            put(world, "narrow", json!({"kind": "hang"})).await;
        }
        let hangs = |line: &LogLine| line.line.contains("HANGING");
        let logs = world.stack.logs();
        for rounds in 1..=3 {
            // Two at a time, and the last one alone.
            let (begun, at_once) = if rounds == 3 { (5, 1) } else { (rounds * 2, 2) };
            let nth = |line: &LogLine| {
                let earlier = logs.since(0);
                hangs(line) && earlier.iter().filter(|one| hangs(one) && one.number <= line.number).count() == begun
            };
            logs.wait_for(0, Duration::from_secs(30), nth).await.expect("they hang");
            assert_eq!(world.stack.functions().busy(), at_once);
            assert_eq!(world.stack.functions().kill("probe-worker").await, Ok(at_once));
        }
    })
    .await;
}

#[tokio::test]
async fn a_function_gets_the_messages_of_all_its_queues() {
    play_with(with_queues(&["First", "Second", "Third"], 3), async |world| {
        for queue in ["first", "second", "third", "probe-work"] {
            for _ in 0..5 {
                put(world, queue, json!({"kind": "job", "v": 1, "id": "none"})).await;
            }
        }
        world.drain().await;
        let shown = world.events("RECORD_HANDLED");
        assert_eq!(shown.iter().filter(|line| line["outcome"] == "no_such_job").count(), 20);
    })
    .await;
}

#[tokio::test]
async fn a_message_that_its_function_hides_is_redelivered_at_that_time_each_time() {
    let expected = Expected { waiting: 1, ..Expected::default() };
    play_with(with_queues(&["Patient"], 1_000).expecting(expected), async |world| {
        put(world, "patient", json!({"kind": "hide", "seconds": 900})).await;
        for times in 1..=5 {
            let drained = world.send(world.request(Method::POST, "/_local/drain")).await;
            assert_eq!((drained.status, hidden(world)), (200, times), "the stack is idle while a message is hidden");
            let counts = world.stack.queues().counts("patient").await.expect("counts");
            assert_eq!((counts.waiting, counts.visible, counts.moving), (1, 0, 0));
            // Past the queue's own visibility timeout, but not yet at the time that the function
            // set.
            world.advance(Duration::from_secs(890)).await;
            assert_eq!(hidden(world), times);
            world.advance(Duration::from_secs(10)).await;
        }
        assert_eq!(hidden(world), 6);
    })
    .await;
}
