//! Guests that break the protocol: the server stays, and the next request is answered.

use crate::fuse::{self, GETATTR, request};
use crate::monitor::{Descriptor, ENTRIES, MEMORY, Monitor, NEXT, TURN, WRITE};
use crate::{World, check};
use vm_memory::{Bytes, GuestAddress};

/// The root directory can be asked for.
fn answers(monitor: &mut Monitor) {
    monitor.fuse(GETATTR, 1, &[&[0; 16]]).unwrap();
}

#[test]
fn chains_that_lie_are_given_back() {
    let _turn = TURN.lock();
    let mut world = World::new();
    let mut monitor = Monitor::connect(&world.socket());
    monitor.begin();
    let whole = request(GETATTR, 1, &[&[0; 16]]);
    monitor.memory.write_slice(&whole, GuestAddress(2 << 20)).unwrap();
    let good = Descriptor { address: 2 << 20, length: whole.len() as u32, flags: NEXT, next: 5 };
    let space = Descriptor { address: 3 << 20, length: 4096, flags: WRITE, next: 0 };
    let chains: &[(&str, &[Descriptor])] = &[
        ("buffers beyond the memory", &[Descriptor { address: MEMORY, ..good }, space]),
        ("an address that wraps", &[Descriptor { address: u64::MAX - 8, ..good }, space]),
        ("a reply beyond the memory", &[good, Descriptor { address: MEMORY - 8, ..space }]),
        ("a request of 7 MiB", &[Descriptor { address: 0, length: 7 << 20, ..good }, space]),
        ("no bytes", &[Descriptor { length: 0, ..good }, space]),
        ("half a header", &[Descriptor { length: 20, ..good }, space]),
        ("no space", &[good, Descriptor { length: 3, ..space }]),
        ("nothing to write to", &[Descriptor { flags: 0, ..good }]),
        (
            "the reply before the request",
            &[Descriptor { flags: WRITE | NEXT, ..good }, Descriptor { flags: 0, ..space }],
        ),
        ("a chain without an end", &[good, Descriptor { flags: NEXT, next: 4, ..space }]),
        ("a next one that is not there", &[Descriptor { next: ENTRIES, ..good }]),
    ];
    for (what, chain) in chains {
        for (number, descriptor) in chain.iter().enumerate() {
            monitor.describe(1, 4 + number as u16, *descriptor);
        }
        monitor.offer(1, 4);
        let (head, length) = monitor.returned(1);
        assert!(head == 4 && length <= 4096, "{what}: {head} {length}");
        answers(&mut monitor);
    }
    drop(monitor);
    world.stop();
    check(&world.image());
}

#[test]
fn a_ring_that_lies_ends_no_other_guest() {
    let _turn = TURN.lock();
    let mut world = World::new();
    // More entries than the queue has; a head that is no descriptor.
    for damage in
        [|monitor: &mut Monitor| monitor.announce(1, 9999), |monitor: &mut Monitor| monitor.offer(1, 999)]
    {
        let mut monitor = Monitor::connect(&world.socket());
        monitor.begin();
        damage(&mut monitor);
        // The queue of the guest is lost, as it would be with a device.
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(monitor);
        let mut monitor = Monitor::connect(&world.socket());
        monitor.begin();
        answers(&mut monitor);
    }
    world.stop();
    check(&world.image());
}

#[test]
fn random_requests_are_answered() {
    let _turn = TURN.lock();
    let mut world = World::new();
    let mut monitor = Monitor::connect(&world.socket());
    monitor.begin();
    let mut random = fastrand::Rng::with_seed(51);
    let requests = std::env::var("PAPILIO_GUEST_REQUESTS").ok().and_then(|text| text.parse().ok());
    for number in 0..requests.unwrap_or(3000) {
        let body: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
        let operation = random.u32(0..56);
        if operation == fuse::INIT || operation == fuse::DESTROY {
            continue;
        }
        let node = if random.bool() { 1 } else { random.u64(0..20) };
        let mut bytes = request(operation, node, &[&body]);
        if random.u8(..) < 20 {
            // The length in the header is another one.
            bytes[random.usize(0..4)] = random.u8(..);
        }
        monitor.submit(1, 0, &bytes, 64 << 10);
        let (_, length) = monitor.returned(1);
        assert!(length <= 64 << 10, "request {number}");
        if number % 100 == 0 {
            answers(&mut monitor);
        }
    }
    drop(monitor);
    world.stop();
    check(&world.image());
}
