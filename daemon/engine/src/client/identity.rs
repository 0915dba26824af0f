//! The account and the credentials with which a client identifies itself to a server.
//!
//! The account and the credentials are read for each new connection. So a changed password or file takes effect at the next connection,
//! without a reload.

use async_nats::Auth;
use nkeys::KeyPair;
use shmcast_bridge::files;
use shmcast_bridge::spec::NatsSpec;
use shmcast_bridge::spec::server::Account;

/// Reads the account and the credentials of the spec, and signs the server's `nonce` with the key of the credentials.
///
/// # Errors
/// A sentence that names the file and the problem, and shows no secret.
pub(super) fn read(nats: &NatsSpec, nonce: &[u8]) -> Result<Auth, String> {
    let mut auth = Auth::new();
    match nats.read_account()? {
        Some(Account::User { name, password }) => {
            (auth.username, auth.password) = (Some(name), Some(password));
        }
        Some(Account::Token(token)) => auth.token = Some(token),
        None => {}
    }
    if let Some(file) = &nats.creds {
        let failed = |why: String| format!("credentials {}: {why}", file.display());
        let text = files::read_to_string(file).map_err(|e| failed(e.to_string()))?;
        let (token, seed) = parts(&text).ok_or_else(|| {
            failed("it has no token and no key: write the file again with `nsc generate creds`".to_owned())
        })?;
        let signed = KeyPair::from_seed(seed).and_then(|key| key.sign(nonce));
        auth.signature = Some(signed.map_err(|e| failed(format!("its key is not valid: {e}")))?);
        auth.jwt = Some(token.to_owned());
    }
    Ok(auth)
}

/// Finds the token and the key's seed in the text of a file of credentials. Each of them is one line between two lines that begin with
/// dashes.
fn parts(text: &str) -> Option<(&str, &str)> {
    let is_rule = |line: &str| line.starts_with("---");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    let mut rest = &lines[..];
    while let [before, line, after, ..] = rest {
        let is_framed = is_rule(before) && !line.is_empty() && !is_rule(line) && is_rule(after);
        found.extend(is_framed.then_some(*line));
        rest = &rest[if is_framed { 3 } else { 1 }..];
    }
    Some((found.first()?, found.get(1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_credentials_has_a_token_and_a_key() {
        let text = "-----BEGIN NATS USER JWT-----\r\neyJ0.eyJq.a-b_c\r\n------END NATS USER JWT------\r\n\r\n\
                    ************************* IMPORTANT *************************\r\nNKEYs are secrets.\r\n\r\n\
                    -----BEGIN USER NKEY SEED-----\r\nSUAIO3\r\n------END USER NKEY SEED------\r\n";
        assert_eq!(parts(text), Some(("eyJ0.eyJq.a-b_c", "SUAIO3")));
        assert_eq!(parts(&text.replace("\r\n", "\n")), Some(("eyJ0.eyJq.a-b_c", "SUAIO3")));
        assert_eq!(parts("---a\ntoken\n---b\n---c\nseed\n---d"), Some(("token", "seed")));
        for text in ["", "token", "---a\ntoken\n---b\n", "---a\n\n---b\n---c\n\n---d\n"] {
            assert_eq!(parts(text), None, "{text:?}");
        }
    }
}
