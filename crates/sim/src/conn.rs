//! Connections that can be broken on purpose.
//!
//! A handler can only answer; to make a client see a reset it has to reach the socket. Every accepted socket is
//! wrapped so that whoever holds its [`Conn`] can make all further reads and writes fail, which drops the
//! connection and with it the handler that is waiting.

use std::{
    collections::HashMap,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use futures::task::AtomicWaker;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

use crate::state::locked;

/// A handle on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Conn(Arc<Switch>);

#[derive(Debug, Default)]
struct Switch {
    broken: AtomicBool,
    reader: AtomicWaker,
}

impl Conn {
    /// Breaks the connection; the client sees a reset.
    pub(crate) fn abort(&self) {
        self.0.broken.store(true, Ordering::Release);
        self.0.reader.wake();
    }

    fn check(&self) -> io::Result<()> {
        if self.0.broken.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl Connected<IncomingStream<'_, Acceptor>> for Conn {
    fn connect_info(stream: IncomingStream<'_, Acceptor>) -> Self {
        stream.io().conn.clone()
    }
}

/// All open connections of a simulator.
#[derive(Debug, Default)]
pub(crate) struct Conns {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Conn>>,
}

impl Conns {
    pub(crate) fn abort_all(&self) {
        for conn in locked(&self.open).values() {
            conn.abort();
        }
    }

    pub(crate) fn count(&self) -> usize {
        locked(&self.open).len()
    }
}

/// Accepts sockets and wraps them.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) listener: TcpListener,
    pub(crate) conns: Arc<Conns>,
}

impl Listener for Acceptor {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let conn = Conn(Arc::default());
        let id = self.conns.next.fetch_add(1, Ordering::Relaxed);
        locked(&self.conns.open).insert(id, conn.clone());
        let conns = Arc::clone(&self.conns);
        let socket = Socket {
            stream,
            conn,
            id,
            conns,
        };
        (socket, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// One wrapped socket.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    conn: Conn,
    id: u64,
    conns: Arc<Conns>,
}

impl Drop for Socket {
    fn drop(&mut self) {
        locked(&self.conns.open).remove(&self.id);
        // Closing with a zero linger sends a reset instead of a proper end.
        if self.conn.check().is_err()
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "cannot reset a connection");
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.conn.0.reader.register(cx.waker());
        self.conn.check()?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.conn.check()?;
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.conn.check()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
