//! Counters that the flows of one owner share: a flow is to be small, and what one has counted is
//! of use to nobody once it is gone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One of them. Only the thread that owns the flows counts, so nothing is locked; any may read.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// The one event more.
    pub(super) fn one(&self) {
        self.add(1);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Declares what is counted, and what was counted up to some time.
macro_rules! counters {
    ($(#[$about:meta])* $stats:ident in $counters:ident { $($(#[$meaning:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $stats {
            $($(#[$meaning])* pub $name: u64,)*
        }

        /// Where flows count; see the fields of what [`get`](Self::get) returns.
        #[derive(Debug, Default)]
        pub struct $counters {
            $(pub(in crate::flow) $name: $crate::flow::counters::Count,)*
        }

        impl $counters {
            /// Returns the counts so far.
            pub fn get(&self) -> $stats {
                $stats { $($name: self.$name.get(),)* }
            }
        }
    };
}
pub(super) use counters;
