//! Connections: TLS, limits on time and size, and an end that waits for open calls.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use fairlane_runtime::Shutdown;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

/// How long a client may take over the head of a request, or leave its connection idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that takes nothing of what is written to it for so long has gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The head of a request, bytes; hyper answers a larger one with 431.
const HEAD_BYTES_MAX: usize = 64 * 1024;
const STREAMS_PER_CONNECTION: u32 = 250;
/// After a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A server that listens and does not answer yet.
#[derive(Debug)]
pub(crate) struct Server {
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    connections: Arc<Semaphore>,
}

impl Server {
    /// # Errors
    /// If the address cannot be bound, or the certificate not be used.
    pub(crate) async fn bind(
        addr: SocketAddr,
        tls: Option<(&Path, &Path)>,
        connections_max: usize,
    ) -> anyhow::Result<Self> {
        let tls = tls.map(|(cert, key)| tls_config(cert, key)).transpose()?;
        let listener = TcpListener::bind(addr)
            .await
            .with_context(|| format!("cannot listen on producer.api_addr {addr}"))?;
        Ok(Self {
            listener,
            tls,
            connections: Arc::new(Semaphore::new(connections_max)),
        })
    }

    pub(crate) fn addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` says to drain, then lets open calls end, or cuts them off when it says
    /// to stop at once.
    pub(crate) async fn serve(self, router: Router, shutdown: &Shutdown) {
        let graceful = GracefulShutdown::new();
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                () = shutdown.draining().cancelled() => break,
                accepted = self.accept() => accepted,
            };
            let (stream, permit) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let tls = self.tls.clone().map(TlsAcceptor::from);
            let router = router.clone();
            let watcher = graceful.watcher();
            let stop = shutdown.stop_now().clone();
            tasks.spawn(async move {
                let _permit = permit;
                let served = async {
                    match tls {
                        None => connection(stream, router, watcher).await,
                        Some(tls) => {
                            match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                                Ok(Ok(stream)) => connection(stream, router, watcher).await,
                                Ok(Err(error)) => tracing::debug!(%error, "no TLS"),
                                Err(_) => tracing::debug!("a TLS handshake took too long"),
                            }
                        }
                    }
                };
                tokio::select! {
                    () = served => {}
                    () = async { stop.cancelled().await; tokio::time::sleep(ACCEPT_PAUSE).await } => {}
                }
            });
        }
        drop(self.listener);
        tasks.close();
        graceful.shutdown().await;
        tasks.wait().await;
    }

    async fn accept(&self) -> std::io::Result<(Client, OwnedSemaphorePermit)> {
        let permit = self.connections.clone().acquire_owned().await;
        let permit = permit.expect("this semaphore is never closed");
        let (stream, _) = self.listener.accept().await?;
        stream.set_nodelay(true)?;
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(WRITE_TIMEOUT));
        Ok((Box::pin(stream), permit))
    }
}

/// A socket whose writes end in time.
type Client = Pin<Box<TimeoutStream<TcpStream>>>;

async fn connection<S>(stream: S, router: Router, watcher: hyper_util::server::graceful::Watcher)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_header_list_size(u32::try_from(HEAD_BYTES_MAX).expect("it is small"))
        .keep_alive_interval(HEAD_TIMEOUT);
    let service = TowerToHyperService::new(router);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(error, "a connection ended early");
    }
}

fn tls_config(cert: &Path, key: &Path) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let chain = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("producer.api_tls_cert_file {}", cert.display()))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("producer.api_tls_key_file {}", key.display()))?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .context(
            "producer.api_tls_cert_file and producer.api_tls_key_file do not fit each other",
        )?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::task::AbortOnDropHandle;

    use super::*;

    struct Probe {
        addr: SocketAddr,
        shutdown: Shutdown,
        serving: AbortOnDropHandle<()>,
    }

    async fn probe(router: Router) -> Probe {
        let server = Server::bind("127.0.0.1:0".parse().unwrap(), None, 10)
            .await
            .unwrap();
        let (addr, shutdown) = (server.addr().unwrap(), Shutdown::new());
        let stopping = shutdown.clone();
        let serving = tokio::spawn(async move { server.serve(router, &stopping).await });
        Probe {
            addr,
            shutdown,
            serving: AbortOnDropHandle::new(serving),
        }
    }

    async fn said(stream: &mut TcpStream) -> String {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await.unwrap();
        String::from_utf8(text).unwrap()
    }

    // The clock is paused: it runs on by itself as soon as everybody waits.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_does_not_come_to_its_end_ends_its_connection() {
        let probe = probe(Router::new()).await;
        let mut stream = TcpStream::connect(probe.addr).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx-slow:")
            .await
            .unwrap();
        let told = said(&mut stream).await;
        assert!(
            told.is_empty() || told.starts_with("HTTP/1.1 408"),
            "{told}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_of_a_long_answer_is_dropped() {
        let (held, mut let_go) = tokio::sync::mpsc::channel::<()>(1);
        let endless = get(move || {
            let held = held.clone();
            async move {
                let chunks = futures::stream::repeat_with(move || {
                    let _ = &held;
                    Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b'x'; 65_536]))
                });
                axum::body::Body::from_stream(chunks)
            }
        });
        let probe = probe(Router::new().route("/", endless)).await;
        let mut stream = TcpStream::connect(probe.addr).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).await.unwrap();
        probe.shutdown.begin();
        // The server goes only when its last connection has gone, and the body with it.
        probe.serving.await.unwrap();
        assert!(let_go.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_head_that_is_too_large_is_refused() {
        let probe = probe(Router::new()).await;
        let mut stream = TcpStream::connect(probe.addr).await.unwrap();
        let head = format!(
            "GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n",
            "y".repeat(2 * HEAD_BYTES_MAX)
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut told = [0; 12];
        stream.read_exact(&mut told).await.unwrap();
        assert_eq!(&told, b"HTTP/1.1 431");
    }

    #[tokio::test]
    async fn an_open_call_comes_to_its_end_when_the_process_drains() {
        let (arrived, mut arrivals) = tokio::sync::mpsc::channel(1);
        let go = tokio_util::sync::CancellationToken::new();
        let gone = go.clone();
        let slow = get(move || async move {
            arrived.send(()).await.unwrap();
            gone.cancelled().await;
            "answered"
        });
        let probe = probe(Router::new().route("/", slow)).await;
        let mut stream = TcpStream::connect(probe.addr).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            .await
            .unwrap();
        arrivals.recv().await.unwrap();
        probe.shutdown.begin();
        go.cancel();
        assert!(said(&mut stream).await.ends_with("answered"));
        probe.serving.await.unwrap();
        assert!(TcpStream::connect(probe.addr).await.is_err());
    }
}
