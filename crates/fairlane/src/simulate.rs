//! `fairlane sim`: the simulator as a process of its own.

use anyhow::Context as _;
use fairlane_runtime::drain;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cli::SimArgs;
use crate::exit::{Exit, Outcome, Stop};
use crate::out::{print, say};

/// Serves until a signal; a second one ends it at once.
pub(crate) async fn run(args: SimArgs) -> Outcome {
    args.sim
        .check()
        .map_err(|error| Stop::new(Exit::Usage, error))?;
    let (mut signals, _listening) = drain::listen().context("cannot listen for signals")?;
    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("cannot listen on {}", args.listen))?;
    let addr = listener.local_addr().context("cannot learn the address")?;
    print(format_args!("http://{addr}"))?;
    say(format_args!(
        "simulating the Claude API with the limits of preset {:?}; set claude.base_url to the address above",
        args.sim.preset
    ));
    let stop = CancellationToken::new();
    let serving = fairlane_sim::serve(args.sim, listener, stop.clone());
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return Ok(ended.map(|()| Exit::Ok)?),
        _ = signals.recv() => stop.cancel(),
    }
    tokio::select! {
        ended = &mut serving => Ok(ended.map(|()| Exit::Ok)?),
        _ = signals.recv() => Ok(Exit::Interrupted),
    }
}
