//! Streams that accept no blocks, or are removed while a sender uses them.

use nix::sys::signal::Signal;
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::nats::{Server, alone};
use shmcast_testkit::{Process, wait_for, wait_until};
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};

/// Makes a stream that refuses blocks once it is full.
fn make_full_stream(server: &Server, host: &Host, nats: &str) {
    let config = r#"{"name":"SHMCAST_ticks","subjects":["shmcast.ticks"],"storage":"file","allow_direct":true,"max_bytes":20000,"discard":"new"}"#;
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let size = config.len();
    write!(
        client,
        "CONNECT {{\"verbose\":false}}\r\nPUB $JS.API.STREAM.CREATE.SHMCAST_ticks {size}\r\n{config}\r\n"
    )
    .unwrap();
    let info = format!("bridge stream info ticks {nats}");
    wait_until("the stream", || host.run(&info).status.success());
}

/// Publishes `messages` messages.
fn publish(host: &Host, messages: usize) {
    let mut command = host.shmcast("pub ticks");
    let lines = vec![b"a line of some bytes\n".to_vec(); messages].concat();
    command.stdin(File::open(host.file("lines", &lines)).unwrap());
    assert!(command.status().unwrap().success());
}

/// Starts a sender whose output goes to a file. Also returns a function that reads this file.
fn send(host: &Host, arguments: &str) -> (Process, impl Fn() -> String + use<>) {
    let said = host.file("said", b"");
    let mut command = host.shmcast(&format!("bridge send ticks --set send.from=oldest {arguments}"));
    command.stderr(File::create(&said).unwrap());
    (Process::start(&mut command), move || text(&fs::read(&said).unwrap()))
}

#[test]
fn a_stream_that_takes_no_blocks_is_told_and_what_is_left_is_an_error() {
    let test = "a_stream_that_takes_no_blocks_is_told_and_what_is_left_is_an_error";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let nats = server.url();
    make_full_stream(&server, &host, &nats);
    publish(&host, 20_000);
    let (mut sender, said) = send(&host, &format!("--nats {nats}"));
    wait_until("the servers' reason", || {
        said().contains("refuse blocks") && said().contains("maximum bytes")
    });
    sender.signal(Signal::SIGINT);
    assert_eq!(sender.wait().code(), Some(1), "{}", said());
    assert!(said().contains("20000 messages are NOT STORED"), "{}", said());
}

#[test]
fn a_stream_that_is_removed_is_made_again_by_a_sender_that_may() {
    let test = "a_stream_that_is_removed_is_made_again_by_a_sender_that_may";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let nats = server.url();
    publish(&host, 1_000);
    let (mut sender, said) = send(&host, &format!("--nats {nats} --set nats.create=true"));
    let stored = || {
        let output = host.run(&format!("bridge stream verify ticks {nats} --json"));
        let found: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        found.and_then(|found| found["messages"].as_u64())
    };
    wait_until("all messages", || stored() == Some(1_000));
    assert!(host.run(&format!("bridge stream rm ticks {nats}")).status.success());
    wait_until("all messages again", || stored() == Some(1_000));
    wait_until("a word about the loss", || said().contains("the servers lost 1,000 messages"));
    sender.signal(Signal::SIGINT);
    assert_eq!(sender.wait().code(), Some(0), "{}", said());

    let (mut sender, said) = send(&host, &format!("--nats {nats}"));
    wait_until("a session", || said().contains("sending session"));
    assert!(host.run(&format!("bridge stream rm ticks {nats}")).status.success());
    wait_until("a word", || said().contains("it is gone: make it"));
    sender.signal(Signal::SIGINT);
    assert_eq!(sender.wait().code(), Some(0), "all was stored: {}", said());
}

/// An earlier mistake: a signal had no effect while a bridge waited for the first answer of a server.
#[test]
fn a_bridge_ends_at_a_signal_before_any_server_has_answered() {
    let host = Host::new();
    publish(&host, 1);
    for (verb, code) in
        [("send ticks", 0), ("recv copy", 0), ("send ticks --until-end", 143), ("recv copy --until-end", 143)]
    {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        silent.set_nonblocking(true).unwrap();
        let said = host.file("said", b"");
        let nats = silent.local_addr().unwrap();
        let mut command = host.shmcast(&format!("bridge {verb} --nats nats://{nats}"));
        let mut bridge = Process::start(command.stderr(File::create(&said).unwrap()));
        let _connection = wait_for("a connection", || silent.accept().ok());
        bridge.signal(Signal::SIGTERM);
        let status = bridge.wait();
        assert_eq!(status.code(), Some(code), "{verb}: {}", text(&fs::read(&said).unwrap()));
    }
}
