//! Wire formats, CM and pairing against frames captured from Soft-RoCE (`tests/golden`), and
//! against random input.
#![cfg(test)]

mod calls;
mod capture;
mod cm;
mod fields;
mod golden;
mod ip;
mod pairing;
mod pairing_crowd;
mod pairing_rivals;
mod pairing_simulation;
mod pairing_turns;
mod properties;
