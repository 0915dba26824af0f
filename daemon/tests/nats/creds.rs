//! Accounts of an operator: a file with credentials, as `nsc` writes it, with the permissions that the guide gives.

use crate::access::allowed;
use crate::feed::{Feed, Pace};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};
use shmcast_testkit::command::text;
use shmcast_testkit::nats::{Server, program};
use shmcast_testkit::turn::turn;
use std::fs;
use std::path::Path;
use std::time::Duration;

const PACE: Pace =
    Pace { messages: 20_000, ahead: 20_000, pause: Duration::from_micros(500), capacity: 16 << 20 };

/// A token with `claims` about `subject`, signed by `issuer`.
fn token(issuer: &KeyPair, subject: &KeyPair, name: &str, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(&json!({ "typ": "JWT", "alg": "ed25519-nkey" }));
    let body = part(&json!({
        "jti": name, "iat": 1_700_000_000, "iss": issuer.public_key(), "sub": subject.public_key(), "name": name,
        "nats": claims,
    }));
    let signed = format!("{head}.{body}");
    let seal = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(seal))
}

/// The settings of a server whose operator admits one account. `revoked` are users that the account no longer admits.
pub(crate) fn operated(operator: &KeyPair, account: &KeyPair, revoked: &[String]) -> String {
    let of_operator = token(operator, operator, "operator", &json!({ "type": "operator", "version": 2 }));
    let system = KeyPair::new_account();
    // The server's own account is not allowed to store anything.
    let preload = |account: &KeyPair, name: &str, storage: i64| {
        let limits = json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
            "mem_storage": storage, "disk_storage": storage, "streams": storage, "consumer": storage,
        });
        let mut claims = json!({ "type": "account", "version": 2, "limits": limits });
        for user in revoked {
            claims["revocations"][user] = json!(1_800_000_000);
        }
        format!("{}: \"{}\"", account.public_key(), token(operator, account, name, &claims))
    };
    format!(
        "operator: \"{of_operator}\"\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}, {} }}",
        system.public_key(),
        preload(account, "account", -1),
        preload(&system, "system", 0),
    )
}

/// The public key of the user whose credentials are in this file.
pub(crate) fn public_key(file: &str) -> String {
    let text = fs::read_to_string(file).unwrap();
    let seed = text.lines().find(|line| line.starts_with("SU")).unwrap();
    KeyPair::from_seed(seed).unwrap().public_key()
}

/// Writes the credentials of a user of an account. Without permissions, the user is allowed to do everything.
pub(crate) fn credentials(
    dir: &Path,
    account: &KeyPair,
    name: &str,
    may: Option<[Vec<String>; 2]>,
) -> String {
    let user = KeyPair::new_user();
    let mut claims = json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 });
    if let Some([publish, subscribe]) = may {
        (claims["pub"], claims["sub"]) = (json!({ "allow": publish }), json!({ "allow": subscribe }));
    }
    let file = dir.join(format!("{name}.creds"));
    let content = format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        token(account, &user, name, &claims),
        user.seed().unwrap()
    );
    fs::write(&file, content).unwrap();
    file.display().to_string()
}

#[test]
fn a_file_of_credentials_lets_each_end_do_its_part() {
    let test = "a_file_of_credentials_lets_each_end_do_its_part";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (operator, account, stranger) =
        (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    let more = operated(&operator, &account, &[]);
    let server = Server::with(program, &dir.path().join("n"), &more);
    let with = |name: &str, account: &KeyPair, may| {
        format!("{} --set nats.creds={}", server.url(), credentials(dir.path(), account, name, may))
    };
    let mut feed = Feed::publish(PACE);
    feed.compare(|_| false);
    let create = feed.near.run(&format!("bridge stream create ticks {}", with("admin", &account, None)));
    assert!(create.status.success(), "{}", text(&create.stderr));
    let mut send = feed.send(&format!("--nats {}", with("sender", &account, Some(allowed("sender")))));
    let mut receive =
        feed.receive(&format!("--nats {}", with("receiver", &account, Some(allowed("receiver")))));
    feed.wait_for(PACE.messages + 1, &mut [&mut send, &mut receive]);
    for bridge in [send, receive] {
        let (_, said) = bridge.end();
        assert!(!said.contains("ermissions"), "an account is refused something: {said}");
    }
    // The credentials are of an account that the server does not know, or the file does not exist.
    for (with, words) in [
        (with("stranger", &stranger, None), "authorization"),
        (format!("{} --set nats.creds=/none.creds", server.url()), "/none.creds"),
    ] {
        let refused = feed.near.run(&format!("bridge send ticks --nats {with}"));
        let said = text(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains(words), "{said}");
    }
    feed.finish();
}
