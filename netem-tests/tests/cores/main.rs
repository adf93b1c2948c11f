//! Two gateway cores driven step by step, where a whole simulated world would only now and then
//! come across what is to be shown.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "test code, also where no function is a test"
)]

mod failing;
mod pair;
mod sizes;
