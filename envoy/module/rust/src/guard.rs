//! Keeps panics away from Envoy.

use std::panic::{catch_unwind, AssertUnwindSafe};

/// Runs a function and returns its result, or `other` if it panics.
pub fn guarded<R>(other: R, run: impl FnOnce() -> R) -> R {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        std::mem::forget(payload); // its destructor could panic
        other
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("again");
        }
    }

    #[test]
    fn panics_do_not_leave() {
        assert_eq!(guarded(1, || 2), 2);
        assert_eq!(guarded(1, || panic!("expected")), 1);
        assert_eq!(guarded(1, || std::panic::panic_any(Bomb)), 1);
    }
}
