//! The function in these tests is this test binary itself, started with the arguments that run only
//! `the_probe`: a small client of the runtime API that does what its events ask for.

use std::{process::Command, time::Duration};

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn every_invocation_gets_its_own_answer_and_the_process_limit_holds() {
    let functions = started(probe(4), &Logs::in_memory()).await;
    let mut invocations = JoinSet::new();
    for n in 0..200 {
        let functions = functions.clone();
        invocations.spawn(async move { (n, invoke(&functions, json!({ "n": n })).await) });
    }
    while let Some(answer) = invocations.join_next().await {
        let (n, answer) = answer.unwrap();
        assert_eq!(answer.unwrap()["n"], n);
    }
    assert!((1..=4).contains(&functions.processes().len()));
    assert_eq!(functions.busy(), 0);
}

#[tokio::test]
async fn sequential_invocations_use_one_process() {
    let functions = started(probe(4), &Logs::in_memory()).await;
    for served in 1..=50 {
        assert_eq!(invoke(&functions, json!({})).await.unwrap()["served"], served);
    }
    assert_eq!(functions.processes().len(), 1);
}

#[tokio::test]
async fn invocations_are_served_in_order_of_arrival() {
    let logs = Logs::in_memory();
    let functions = started(probe(1), &logs).await;
    let mut invocations = JoinSet::new();
    for n in 0..20 {
        let functions = functions.clone();
        invocations.spawn(async move { invoke(&functions, json!({ "do": "print", "text": format!("n{n}") })).await });
    }
    assert!(invocations.join_all().await.into_iter().all(|answer| answer.is_ok()));
    let printed: Vec<String> = printed(&logs).into_iter().filter(|line| line.starts_with('n')).collect();
    assert_eq!(printed, (0..20).map(|n| format!("n{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn killing_a_process_fails_its_invocation_and_the_next_one_gets_a_new_process() {
    let logs = Logs::in_memory();
    let functions = started(probe(1), &logs).await;
    let before = invoke(&functions, json!({})).await.unwrap();
    let hanging = json!({ "do": "hang" });
    let (died, killed) = tokio::join!(invoke(&functions, hanging), async {
        logs.wait_for(0, LONG, |line| line.line == "hanging").await.unwrap();
        functions.kill("probe").await.unwrap()
    });
    assert_eq!(killed, 1);
    assert_eq!(died, Err(InvokeError::Died(Exit { code: None, signal: Some(9) })));
    assert_eq!(functions.processes(), []);
    let after = invoke(&functions, json!({})).await.unwrap();
    assert_ne!(before["pid"], after["pid"]);
}

#[tokio::test]
async fn a_process_that_exits_during_an_invocation_fails_it_with_its_exit_code() {
    let functions = started(probe(1), &Logs::in_memory()).await;
    let died = invoke(&functions, json!({ "do": "exit" })).await;
    assert_eq!(died, Err(InvokeError::Died(Exit { code: Some(3), signal: None })));
    assert!(invoke(&functions, json!({})).await.is_ok());
}

#[tokio::test]
async fn an_invocation_that_exceeds_its_timeout_is_killed() {
    let spec = FunctionSpec { timeout: Duration::from_millis(300), ..probe(1) };
    let functions = started(spec, &Logs::in_memory()).await;
    assert_eq!(invoke(&functions, json!({ "do": "hang" })).await, Err(InvokeError::TimedOut));
    assert!(invoke(&functions, json!({})).await.is_ok());
}

#[tokio::test]
async fn a_process_that_answers_with_an_error_continues_to_serve() {
    let functions = started(probe(1), &Logs::in_memory()).await;
    let failed = invoke(&functions, json!({ "do": "fail" })).await;
    let (error_type, message) = ("Probe".to_owned(), "as asked".to_owned());
    assert_eq!(failed, Err(InvokeError::Failed { error_type, message }));
    let large = invoke(&functions, json!({ "do": "answer too much" })).await;
    assert!(matches!(large, Err(InvokeError::Failed { error_type, .. }) if error_type.contains("TooLarge")));
    assert_eq!(invoke(&functions, json!({})).await.unwrap()["served"], 3);
}

#[tokio::test]
async fn an_event_that_is_too_large_for_lambda_is_rejected() {
    let functions = started(probe(1), &Logs::in_memory()).await;
    let event = Bytes::from(vec![b' '; PAYLOAD_LIMIT + 1]);
    assert_eq!(functions.invoke("probe", event).await, Err(InvokeError::EventTooLarge(PAYLOAD_LIMIT + 1)));
    assert!(matches!(functions.invoke("other", Bytes::new()).await, Err(InvokeError::NoSuchFunction(_))));
    assert_eq!(functions.processes(), []);
}

#[tokio::test]
async fn an_answer_to_another_invocation_is_rejected_and_has_no_effect() {
    let functions = started(probe(1), &Logs::in_memory()).await;
    let answer = invoke(&functions, json!({ "do": "answer another", "n": 1 })).await.unwrap();
    assert_eq!((&answer["refused"], &answer["n"]), (&json!(400), &json!(1)));
}

#[tokio::test]
async fn a_function_that_fails_to_start_fails_each_queued_invocation() {
    for program in ["/bin/false", "/there/is/nothing"] {
        let logs = Logs::in_memory();
        let functions = started(FunctionSpec { program: program.into(), ..probe(2) }, &logs).await;
        let mut invocations = JoinSet::new();
        for _ in 0..3 {
            let functions = functions.clone();
            invocations.spawn(async move { invoke(&functions, json!({})).await });
        }
        for result in invocations.join_all().await {
            assert!(matches!(result, Err(InvokeError::InitFailed { .. })), "{result:?}");
        }
    }
    let unwilling = FunctionSpec { environment: variables(&[("PROBE_INIT", "report")]), ..probe(1) };
    let functions = started(unwilling, &Logs::in_memory()).await;
    let (error_type, message) = ("Probe".to_owned(), "no configuration".to_owned());
    assert_eq!(invoke(&functions, json!({})).await, Err(InvokeError::InitFailed { error_type, message }));
}

#[tokio::test]
async fn the_output_of_an_invocation_is_in_the_logs_when_it_returns() {
    let directory = std::env::temp_dir().join(format!("functions-test-{}", random_uuid()));
    let logs = Logs::new(Some(&directory), false).unwrap();
    let functions = started(probe(1), &logs).await;
    for n in 0..20 {
        let last = format!("last of {n}");
        let from = logs.position();
        invoke(&functions, json!({ "do": "print", "many": 500, "text": last })).await.unwrap();
        let lines: Vec<String> = logs.since(from).into_iter().map(|line| line.line).collect();
        assert_eq!(lines.last(), Some(&last));
        let many: Vec<String> = (0..500).map(|n| format!("line {n}")).collect();
        assert_eq!(lines[lines.len() - 501..lines.len() - 1], many);
    }
    let file = std::fs::read_to_string(directory.join("probe.log")).unwrap();
    assert_eq!(file.lines().map(str::to_owned).collect::<Vec<_>>(), printed(&logs));
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn an_invocation_without_a_caller_runs_to_its_end_and_frees_its_process() {
    let logs = Logs::in_memory();
    let functions = started(probe(1), &logs).await;
    tokio::select! {
        answer = invoke(&functions, json!({ "do": "print", "text": "begun", "then_ms": 200 })) => panic!("{answer:?}"),
        line = logs.wait_for(0, LONG, |line| line.line == "begun") => assert!(line.is_some()),
    }
    assert_eq!(functions.busy(), 1);
    functions.quiet().await;
    assert_eq!(invoke(&functions, json!({})).await.unwrap()["served"], 2);
}

#[tokio::test]
async fn after_a_restart_new_processes_have_the_changed_environment() {
    let functions = started(probe(2), &Logs::in_memory()).await;
    let before = invoke(&functions, json!({})).await.unwrap();
    functions.restart(|environment| _ = environment.insert("CLOCK".to_owned(), "1200".to_owned())).await;
    assert_eq!(functions.processes(), []);
    let after = invoke(&functions, json!({})).await.unwrap();
    assert_eq!((&before["clock"], &after["clock"]), (&json!(null), &json!("1200")));
}

#[tokio::test]
async fn after_a_stop_no_process_runs_and_invocations_fail() {
    let logs = Logs::in_memory();
    let functions = started(probe(1), &logs).await;
    let (running, waiting, pid) = tokio::join!(
        biased;
        invoke(&functions, json!({ "do": "hang" })),
        invoke(&functions, json!({})),
        async {
            logs.wait_for(0, LONG, |line| line.line == "hanging").await.unwrap();
            let (_, pid) = functions.processes()[0];
            assert!(is_running(pid));
            functions.stop().await;
            pid
        }
    );
    assert!(matches!(running, Err(InvokeError::Died(_))));
    assert_eq!(waiting, Err(InvokeError::Stopped));
    assert!(!is_running(pid));
    assert_eq!(invoke(&functions, json!({})).await, Err(InvokeError::Stopped));
}

/// Returns whether there is a process with this id. Unlike `/proc`, `kill` exists on every Unix.
fn is_running(pid: u32) -> bool {
    Command::new("/bin/sh").args(["-c", &format!("kill -0 {pid} 2>/dev/null")]).status().unwrap().success()
}

async fn started(spec: FunctionSpec, logs: &Logs) -> Functions {
    Functions::start(vec![spec], logs.clone()).await.unwrap()
}

async fn invoke(functions: &Functions, event: Value) -> Result<Value, InvokeError> {
    let answer = functions.invoke("probe", event.to_string().into()).await?;
    Ok(serde_json::from_slice(&answer).unwrap())
}

fn printed(logs: &Logs) -> Vec<String> {
    logs.since(0).into_iter().map(|line| line.line).collect()
}

fn variables(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
}

fn probe(concurrency: usize) -> FunctionSpec {
    let test = concat!(module_path!(), "::the_probe");
    let test = test.split_once("::").map_or(test, |(_crate, path)| path);
    FunctionSpec {
        name: "probe".to_owned(),
        program: std::env::current_exe().unwrap(),
        arguments: [test, "--exact", "--nocapture"].map(str::to_owned).to_vec(),
        environment: BTreeMap::new(),
        timeout: LONG,
        memory_mb: 128,
        concurrency,
    }
}

/// Does nothing in a normal test run. As a process of a function, serves until it is killed.
#[tokio::test]
async fn the_probe() {
    let Ok(api) = std::env::var("AWS_LAMBDA_RUNTIME_API") else { return };
    let api = format!("{api}/2018-06-01/runtime");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let post = async |path: String, body: Value| {
        client.post(format!("{api}/{path}")).json(&body).send().await.unwrap().status().as_u16()
    };
    if std::env::var("PROBE_INIT").is_ok() {
        post("init/error".to_owned(), json!({ "errorType": "Probe", "errorMessage": "no configuration" })).await;
    }
    for served in 1.. {
        let next = client.get(format!("{api}/invocation/next")).send().await.unwrap();
        let id = next.headers()["Lambda-Runtime-Aws-Request-Id"].to_str().unwrap().to_owned();
        let event: Value = next.json().await.unwrap();
        let mut answer = json!({
            "n": event["n"], "served": served, "pid": std::process::id(), "clock": std::env::var("CLOCK").ok(),
        });
        match event["do"].as_str() {
            Some("hang") => {
                println!("hanging");
                std::future::pending().await
            }
            Some("exit") => std::process::exit(3),
            Some("print") => {
                for n in 0..event["many"].as_u64().unwrap_or(0) {
                    if n % 2 == 0 { println!("line {n}") } else { eprintln!("line {n}") }
                }
                println!("{}", event["text"].as_str().unwrap());
                tokio::time::sleep(Duration::from_millis(event["then_ms"].as_u64().unwrap_or(0))).await;
            }
            Some("fail") => {
                let error = json!({ "errorType": "Probe", "errorMessage": "as asked" });
                assert_eq!(post(format!("invocation/{id}/error"), error).await, 202);
                continue;
            }
            Some("answer too much") => {
                let large = json!("x".repeat(PAYLOAD_LIMIT));
                assert_eq!(post(format!("invocation/{id}/response"), large).await, 413);
                continue;
            }
            Some("answer another") => {
                answer["refused"] = post(format!("invocation/{}/response", random_uuid()), json!({})).await.into();
            }
            _ => {}
        }
        assert_eq!(post(format!("invocation/{id}/response"), answer).await, 202);
    }
}
