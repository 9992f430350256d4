//! The mapping of a segment: one of the two files with unsafe code.

use crate::lease::{self, Header, Leases};
use rustix::fs::{fcntl_get_seals, fstat, SealFlags};
use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// A mapped segment.
pub struct Map {
    start: NonNull<AtomicU64>,
    words: usize,
    header: Header,
}

// SAFETY: the mapping is not tied to a thread, and all access to it is by atomic operations.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a segment that the sidecar announced with a number of slots and a size in bytes. The error says which check
    /// the file fails.
    pub fn new(file: OwnedFd, slots: u32, size: u64) -> Result<Map, &'static str> {
        if !lease::valid_slots(slots) || size != lease::size(slots) {
            return Err("the announced size is invalid");
        }
        // Without these seals, the sidecar could shrink the file, and an access would raise SIGBUS.
        let wanted = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        match fcntl_get_seals(&file) {
            Ok(seals) if seals.contains(wanted) => {}
            _ => return Err("the segment is not sealed"),
        }
        match fstat(&file) {
            Ok(stat) if u64::try_from(stat.st_size) == Ok(size) => {}
            _ => return Err("the segment has another size than announced"),
        }
        let bytes = usize::try_from(size).map_err(|_| "the segment is too large")?;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
        let start = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        let start = start.ok().and_then(|p| NonNull::new(p.cast())).ok_or("the segment cannot be mapped")?;
        let mut map = Map { start, words: bytes / 8, header: Header { slots, key: (0, 0) } };
        map.header = Header::read(map.memory(), slots).ok_or("the segment's header is invalid")?;
        Ok(map)
    }

    /// Returns the leases of the segment.
    pub fn leases(&self) -> Option<Leases<'_>> {
        Leases::new(self.memory(), self.header)
    }

    fn memory(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is aligned to a page, has this length, cannot shrink because of its seals, and lives as
        // long as self. All processes access it as atomic words or as bytes that this one checks after loading.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and the borrows of `memory` have ended.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.words * 8) };
    }
}
