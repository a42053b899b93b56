//! Our own nats-server: found, started, restarted, killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

use fairlane_nats::embedded::{EmbeddedServer, ServerOptions, StartError};
use fairlane_nats::{NatsOptions, connect};
use fairlane_support::{LIMIT, TestNats, eventually};

/// True while a process with this id exists and has not ended.
fn runs(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

async fn is_gone(pid: u32) {
    eventually(LIMIT, "the server process to end", || async {
        if runs(pid) { Err("it runs") } else { Ok(()) }
    })
    .await;
}

#[tokio::test]
async fn a_restart_keeps_port_and_data_and_the_client_comes_back() {
    let mut test = TestNats::start().await;
    let (url, pid) = (test.url().to_owned(), test.server.pid().unwrap());
    let bucket = test.nats.bucket("fl_tenants");
    bucket.put("acme", "pro".into(), None).await.unwrap();

    test.server.restart().await.unwrap();

    assert_eq!(test.url(), url);
    assert_ne!(test.server.pid().unwrap(), pid);
    let entry = eventually(LIMIT, "the client to reconnect", || bucket.get("acme"))
        .await
        .unwrap();
    assert_eq!(entry.value().unwrap(), "pro");
}

#[tokio::test]
async fn acknowledged_data_survives_a_kill() {
    let mut test = TestNats::start().await;
    let bucket = test.nats.bucket("fl_tenants");
    bucket.put("acme", "pro".into(), None).await.unwrap();

    test.server.kill9().await;
    assert_eq!(test.server.pid(), None);
    test.server.restart().await.unwrap();

    let entry = eventually(LIMIT, "the client to reconnect", || bucket.get("acme"))
        .await
        .unwrap();
    assert_eq!(entry.value().unwrap(), "pro");
}

#[tokio::test]
async fn a_dropped_server_takes_its_process_and_its_files_along() {
    let server = EmbeddedServer::start(ServerOptions::default())
        .await
        .unwrap();
    let (pid, dir) = (server.pid().unwrap(), server.dir().to_owned());
    assert!(runs(pid) && dir.exists());
    drop(server);
    is_gone(pid).await;
    eventually(LIMIT, "the directory to go", || async {
        if dir.exists() {
            Err("it is there")
        } else {
            Ok(())
        }
    })
    .await;
}

#[tokio::test]
async fn a_given_directory_stays_and_is_used_again() {
    let dir = tempfile::tempdir().unwrap();
    let options = || ServerOptions {
        dir: Some(dir.path().join("nats")),
        ..Default::default()
    };
    let first = TestNats::with(options(), &Default::default()).await;
    first
        .nats
        .bucket("fl_tenants")
        .put("acme", "pro".into(), None)
        .await
        .unwrap();
    let mut server = first.server;
    server.stop().await;

    let second = TestNats::bare(options()).await;
    let entry = second
        .nats
        .bucket("fl_tenants")
        .get("acme")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(entry.value().unwrap(), "pro");
}

#[tokio::test]
async fn a_server_that_cannot_start_shows_its_last_words() {
    let first = EmbeddedServer::start(ServerOptions::default())
        .await
        .unwrap();
    let port = first.url().rsplit(':').next().unwrap().parse().unwrap();
    let options = ServerOptions {
        port: Some(port),
        ..Default::default()
    };
    let error = EmbeddedServer::start(options).await.unwrap_err();
    assert!(matches!(&error, StartError::Ended { .. }), "{error:?}");
    assert!(
        error.to_string().contains("address already in use"),
        "{error}"
    );
}

#[tokio::test]
async fn its_listener_is_on_loopback_only() {
    let server = EmbeddedServer::start(ServerOptions::default())
        .await
        .unwrap();
    assert!(
        server.url().starts_with("nats://127.0.0.1:"),
        "{}",
        server.url()
    );
    assert!(
        server.monitor_url().starts_with("http://127.0.0.1:"),
        "{}",
        server.monitor_url()
    );
    let nats = connect(&NatsOptions::new(server.url())).await.unwrap();
    assert_eq!(nats.client.server_info().host, "127.0.0.1");
}

/// Runs this very test binary again as a child that starts a server and waits to be killed.
#[tokio::test]
async fn a_killed_process_does_not_leave_its_server_behind() {
    const CHILD: &str = "FAIRLANE_TEST_SERVER_OWNER";
    if std::env::var_os(CHILD).is_some() {
        let server = EmbeddedServer::start(ServerOptions::default())
            .await
            .unwrap();
        let file = std::env::var_os(CHILD).unwrap();
        let whole = format!("{}\n", server.pid().unwrap());
        std::fs::write(file, whole).unwrap();
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pid");
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_killed_process_does_not_leave_its_server_behind",
        ])
        .env(CHILD, &file)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let pid: u32 = eventually(LIMIT, "the child's server to start", || async {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let line = text.strip_suffix('\n').ok_or("half a line")?;
        line.parse().map_err(|_| format!("not a number: {line:?}"))
    })
    .await;
    assert!(runs(pid));

    owner.kill().unwrap();
    owner.wait().unwrap();

    is_gone(pid).await;
}
