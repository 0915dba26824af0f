//! Accounts and credentials that change while bridges run. A bridge reads its file again at each new connection.

use crate::creds::{credentials, operated, public_key};
use nix::sys::signal::Signal;
use nkeys::KeyPair;
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::nats::{Server, program};
use shmcast_testkit::turn::turn;
use shmcast_testkit::{REST, wait_for, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A daemon's configuration: a channel, and a bridge with the file of its account or credentials.
fn config(server: &Server, identity: &str, more: &str) -> String {
    format!(
        "[limits]\nrequests_per_second = 10000\n{}[[bridge]]\nname = \"far\"\nchannel = \"ticks\"\nengine = \"nats\"\n\
         nats = {{ servers = [\"{}\"], {identity}{more}\n",
        channel("ticks", FOR_ALL),
        server.url(),
    )
}

/// A daemon that sends, a daemon that receives, and a publisher and a reader at the ends.
struct Ends {
    near: Daemon,
    _far: Daemon,
    publisher: Publisher,
    reader: Subscriber,
}

impl Ends {
    fn start(server: &Server, identity: &str) -> Ends {
        let near = Daemon::start(&config(server, identity, ", create = true }\nsend = {}"));
        let far = Daemon::start(&config(server, identity, " }\nreceive = {}"));
        let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
        publisher.publish(b"x").unwrap();
        let client = far.client();
        let reader = wait_for("the channel", || {
            Subscriber::builder("ticks").client(&client).start(Start::Oldest).wait(REST).open().ok()
        });
        let mut ends = Ends { near, _far: far, publisher, reader };
        ends.carry();
        ends
    }

    /// Publishes a message, and waits until the reader has this message and all earlier ones.
    fn carry(&mut self) {
        let sequence = self.publisher.publish(b"x").unwrap();
        let reader = &mut self.reader;
        wait_until(&format!("message {sequence}"), || {
            while let Some(event) = reader.try_recv().unwrap() {
                assert!(!matches!(event, Event::Gap { .. } | Event::Lapped(_)), "{event:?}");
            }
            reader.next_sequence() > sequence
        });
    }
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// An earlier mistake: a bridge read its account only once, and then used the old password for ever.
#[test]
fn a_changed_password_is_read_at_the_next_connection() {
    let test = "a_changed_password_is_read_at_the_next_connection";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let users = "authorization { users: [ { user: all, password: first } ] }";
    let mut server = Server::with(program, &dir.path().join("n"), users);
    let account = dir.path().join("account");
    write_private(&account, "all:first\n");
    let mut ends = Ends::start(&server, &format!("account = \"{}\"", account.display()));

    server.end();
    server.rewrite(|config| config.replace("first", "second"));
    server.start();
    // If the servers refuse a bridge, the bridge reports this and continues to try.
    ends.near.wait_for_log(&["bridge-engine-disconnected"]);
    let status = || {
        let output = ends.near.shmcast("bridge status --json").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    wait_until("the refusal", || status().contains("uthorization"));
    fs::remove_file(&account).unwrap();
    wait_until("the file's absence", || status().contains(&account.display().to_string()));
    write_private(&account, "all:second\n");
    ends.carry();
    ends.near.end(Signal::SIGTERM);
}

/// An earlier mistake: a bridge read its file of credentials only once, and then used the old credentials for ever.
#[test]
fn changed_credentials_are_read_at_the_next_connection() {
    let test = "changed_credentials_are_read_at_the_next_connection";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let file = credentials(dir.path(), &account, "bridge", None);
    let mut server = Server::with(program, &dir.path().join("n"), &operated(&operator, &account, &[]));
    let mut ends = Ends::start(&server, &format!("creds = \"{file}\""));

    // The operator revokes the user, and gives the bridges another user.
    let revoked = public_key(&file);
    server.end();
    let after = operated(&operator, &account, &[revoked]);
    server.rewrite(|config| format!("{}{after}\n", &config[..config.find("operator:").unwrap()]));
    credentials(dir.path(), &account, "bridge", None);
    server.start();
    ends.carry();
}
