//! The TLS provider of the process.

use rustls::crypto::{CryptoProvider, ring};

/// Makes ring the TLS provider of this process. The HTTP and NATS clients are built without one of their own, so
/// that a single implementation is linked; they fail to build before this was called. Calling it again is harmless.
pub fn install_crypto() {
    if CryptoProvider::get_default().is_some() {
        return;
    }
    if ring::default_provider().install_default().is_err() {
        // Another thread was faster; there is a provider, which is all that was asked for.
        tracing::debug!("a TLS provider was already installed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installing_twice_leaves_one_working_provider() {
        install_crypto();
        install_crypto();
        assert!(CryptoProvider::get_default().is_some());
        assert!(reqwest::Client::builder().build().is_ok());
    }
}
