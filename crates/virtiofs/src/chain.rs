//! A request in the guest's memory: a chain of buffers to read, then of buffers to write.
//!
//! Owns the copies from and to the guest. Lengths and addresses are the guest's word; the queue's
//! crate checks each against the memory that the monitor lent.

use papilio_fuse::guest::GuestMessage;
use std::io::{Read, Write};
use std::sync::Arc;
use virtio_queue::DescriptorChain;
use vm_memory::GuestMemoryMmap;

/// The memory of the guest.
pub(crate) type Memory = Arc<GuestMemoryMmap>;
/// Buffers of a request.
pub(crate) type Chain = DescriptorChain<Memory>;

/// Copies a request into `message`. Returns `false` if the guest broke the protocol.
pub(crate) fn receive(chain: &Chain, memory: &Memory, message: &mut GuestMessage) -> bool {
    let Ok(mut reader) = chain.clone().reader(memory) else { return false };
    let length = reader.available_bytes();
    let Some(space) = message.space().get_mut(..length) else { return false };
    if reader.read_exact(space).is_err() {
        return false;
    }
    message.received(length);
    true
}

/// Copies a reply to the guest. Returns its length in bytes; 0 if the guest left too little space.
pub(crate) fn send(chain: &Chain, memory: &Memory, reply: &[u8]) -> u32 {
    let sent = chain.clone().writer(memory).ok().filter(|writer| writer.available_bytes() >= reply.len());
    match sent.map(|mut writer| writer.write_all(reply)) {
        Some(Ok(())) => reply.len() as u32,
        _ => {
            tracing::warn!("the guest left too little space for a reply of {} bytes", reply.len());
            0
        }
    }
}
