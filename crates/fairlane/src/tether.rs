//! Ending together with the parent process, whatever ends it.
//!
//! The parent holds the other end of our standard input and never writes to it. When the parent is gone, even by
//! SIGKILL, the kernel closes that end and a read returns. Then there is nobody left to drain for, so we stop at once.

use std::io::Read;

use crate::out::say;

/// Exit code of a process whose parent has gone.
const ORPHANED: i32 = 1;

/// Watches standard input from a thread of its own; a stuck runtime must not keep us alive.
pub(crate) fn end_with_parent() {
    let watch = || {
        let mut nothing = [0_u8; 64];
        let mut input = std::io::stdin().lock();
        loop {
            match input.read(&mut nothing) {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        std::process::exit(ORPHANED);
    };
    let started = std::thread::Builder::new()
        .name("tether".to_owned())
        .spawn(watch);
    if let Err(error) = started {
        say(format_args!(
            "error: cannot watch the parent process: {error}"
        ));
        std::process::exit(ORPHANED);
    }
}
