//! The `fairlane` program; everything is in the library, so that tests can build the same program.

fn main() -> std::process::ExitCode {
    fairlane::run_from_args()
}
