//! Messages that cannot be read, in every queue.

use std::time::Duration;

use umavez_local::template::load;
use umavez_tests::{Expected, Setup, play_with};

#[tokio::test]
async fn an_unreadable_message_ends_in_the_dead_letter_queue_of_its_queue() {
    let setup = Setup::default();
    let functions = load(&setup.template, &setup.parameters).expect("the template").functions;
    let dead_letters = functions.iter().map(|function| function.queue_sources.len()).sum();
    play_with(setup.expecting(Expected { dead_letters, ..Expected::default() }), async |world| {
        let model = world.stack.model();
        let sources: Vec<_> = model.functions.iter().flat_map(|function| &function.queue_sources).collect();
        for source in &sources {
            world.send_to_queue(&source.queue, "not json").await;
        }
        world.drain().await;
        // Most functions retry a few times, a minute apart; the others as often as the queue
        // allows.
        for _ in 0..6 {
            world.advance(Duration::from_secs(600)).await;
        }
        for source in sources {
            let queue = model.queues.iter().find(|queue| queue.name == source.queue).expect("a queue");
            let (dead_letters, _) = queue.redrive.as_ref().expect("a dead-letter queue");
            let counts = world.stack.queues().counts(dead_letters).await.expect("counts");
            assert!(counts.visible > 0, "{} lost an unreadable message", queue.name);
        }
    })
    .await;
}
