//! Configuration files, right and wrong; one program, since each would be linked anew.

mod documented;
mod examples;
mod invalid;
mod mutations;
mod pairs;
mod policy;
mod schema;
