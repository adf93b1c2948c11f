//! "SDR-RDMA: Software-Defined Reliability Architecture for Planetary Scale RDMA Communication",
//! Khalilov et al., arXiv 2505.05366.
//!
//! [`model`] has its formulas and figures, [`planned`] shows them beside our model, [`simulated`]
//! beside our machines in virtual time.

pub mod model;
pub mod planned;
pub mod simulated;
