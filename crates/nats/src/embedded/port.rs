//! Ports for servers on loopback.
//!
//! Port 0 would let the system choose, but it chooses from the range it also hands out to outgoing connections. While a
//! server with such a port is down, a neighbour's connection can take the port (even its own client can: a connection
//! to a port nobody listens on may be given that very port and meet itself), and the server does not come back.

use std::io;
use std::net::TcpListener;
use std::ops::Range;

/// Below what systems hand out to outgoing connections: 32768 and up on Linux, 49152 and up by IANA.
const PORTS: Range<u16> = 15_000..32_000;
const TRIES: usize = 100;

/// A port of loopback that is free now, and will only be taken by somebody who wants to listen there.
///
/// # Errors
/// If a hundred ports chosen at random are all taken: why the last one cannot be used.
pub fn free_port() -> io::Result<u16> {
    let mut last = io::ErrorKind::AddrInUse.into();
    for _ in 0..TRIES {
        let port = rand::random_range(PORTS);
        match TcpListener::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_is_none_that_an_outgoing_connection_could_take() {
        for _ in 0..50 {
            let port = free_port().unwrap();
            assert!(PORTS.contains(&port), "{port}");
        }
    }
}
