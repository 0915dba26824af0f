#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| shmcast_daemon_fuzz::block(data));
