//! Connecting: early, wrongly, and without permission.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use fairlane_nats::embedded::{EmbeddedServer, ServerOptions};
use fairlane_nats::{ConnectError, NatsOptions, Revision, WriteError, connect};
use fairlane_support::{LIMIT, TestNats, eventually, within};

const USERS: &str = r#"
accounts {
  $SYS { users: [ { user: sys, password: sys } ] }
  FL {
    jetstream: enabled
    users: [
      { user: all, password: secret }
      { user: reader, password: secret, permissions {
          publish: [ "$JS.API.>" ]
          subscribe: [ "_INBOX_reader.>" ]
      } }
    ]
  }
}
"#;

fn user(url: &str, user: &str, password: &str) -> NatsOptions {
    let mut options = NatsOptions::new(url);
    options.user = Some(user.to_owned());
    options.password = Some(password.to_owned());
    options
}

#[tokio::test]
async fn a_process_may_start_before_its_server() {
    let mut server = EmbeddedServer::start(ServerOptions::default())
        .await
        .unwrap();
    let options = NatsOptions::new(server.url());
    server.stop().await;
    let connecting = tokio::spawn(async move { connect(&options).await });
    server.restart().await.unwrap();
    within(LIMIT, "the connection", connecting)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn an_absent_server_is_an_error_after_the_deadline() {
    let mut options = NatsOptions::new("nats://127.0.0.1:1");
    options.connect_timeout = Duration::from_millis(100);
    let error = connect(&options).await.unwrap_err();
    assert!(
        matches!(error, ConnectError::Unreachable { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_wrong_password_is_an_error_at_once() {
    let options = ServerOptions {
        extra_config: USERS.to_owned(),
        ..Default::default()
    };
    let server = EmbeddedServer::start(options).await.unwrap();
    let result = within(
        LIMIT,
        "the refusal",
        connect(&user(server.url(), "all", "wrong")),
    )
    .await;
    assert!(
        matches!(result, Err(ConnectError::Refused(_))),
        "{result:?}"
    );
    connect(&user(server.url(), "all", "secret")).await.unwrap();
}

#[tokio::test]
async fn a_write_without_permission_ends_as_unknown_and_stores_nothing() {
    let options = ServerOptions {
        extra_config: USERS.to_owned(),
        ..Default::default()
    };
    let server = EmbeddedServer::start(options).await.unwrap();
    let all = connect(&user(server.url(), "all", "secret")).await.unwrap();
    fairlane_nats::objects::ensure(&all, &Default::default())
        .await
        .unwrap();
    let mut options = user(server.url(), "reader", "secret");
    options.inbox_prefix = Some("_INBOX_reader".to_owned());
    options.request_timeout = Duration::from_millis(500);
    let reader = connect(&options).await.unwrap();

    let bucket = reader.bucket("fl_tenants");
    assert_eq!(
        bucket.get("acme").await.unwrap(),
        None,
        "reading is allowed"
    );
    let result = bucket
        .put_if("acme", "x".into(), Revision::ABSENT, None)
        .await;
    assert!(
        matches!(result, Err(WriteError::Unknown { .. })),
        "{result:?}"
    );
    assert_eq!(all.bucket("fl_tenants").get("acme").await.unwrap(), None);
}

#[tokio::test]
async fn reconnects_are_counted() {
    let mut test = TestNats::start().await;
    let mut connections = test.nats.connections();
    let before = *connections.borrow_and_update();
    test.server.restart().await.unwrap();
    within(LIMIT, "the reconnect", connections.changed())
        .await
        .unwrap();
    assert!(*connections.borrow() > before);
    eventually(LIMIT, "the connection to be up", || async {
        if test.nats.is_connected() {
            Ok(())
        } else {
            Err("down")
        }
    })
    .await;
}
