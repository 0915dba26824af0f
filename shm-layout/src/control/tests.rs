use super::*;

#[test]
fn requests_are_what_the_table_says_and_nothing_else() {
    let packet = encode(&Request::Publish {
        channel: "ticks".into(),
        resume: false,
        anew: false,
        required: Required::default(),
    });
    assert_eq!(packet, br#"{"request":"publish","channel":"ticks","resume":false,"anew":false}"#);
    assert_eq!(decode::<Request>(br#"{"request":"list"}"#).unwrap(), Request::List {});
    assert_eq!(encode(&Request::Events { last: 0 }), br#"{"request":"events"}"#);
    let past = decode::<Request>(br#"{"request":"events","last":9}"#).unwrap();
    assert_eq!(past, Request::Events { last: 9 });
    let history =
        Request::History { channel: "t".into(), stream: None, sequence: Some(7), time_ns: None, read: None };
    assert_eq!(encode(&history), br#"{"request":"history","channel":"t","sequence":7}"#);
    for bad in [
        &br#"{"request":"publish","channel":"t","resume":false,"anew":false,"extra":1}"#[..],
        br#"{"request":"list","channel":"t"}"#,
        br#"{"request":"mapped","channel":"t"}"#,
        br#"{"request":"events","since":1}"#,
        br#"{"request":"reboot"}"#,
        br#"{"request":"publish"}"#,
        b"[]",
        b"",
        b"\xff",
    ] {
        assert!(decode::<Request>(bad).is_err(), "{}", String::from_utf8_lossy(bad));
    }
}
