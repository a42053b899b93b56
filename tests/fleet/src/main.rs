//! The `fairlane` program as the fleet tests run it.

fn main() -> std::process::ExitCode {
    fairlane::run_from_args()
}
