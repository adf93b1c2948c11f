//! `longhaul plan`

use std::io;

use super::failure::{Outcome, failed, output_failed, unusable};
use super::status::known;
use super::style;
use crate::plan::{PlanArgs, PlanError};

pub(super) fn run(args: &PlanArgs) -> Outcome {
    let mut out = io::stdout().lock();
    let colour = style(&io::stdout());
    let known = known(args.link())?;
    args.run(&mut out, colour, &known).map_err(|error| match error {
        PlanError::Policy(invalid) => unusable(invalid.render(style(&io::stderr()))),
        PlanError::Link(error) => unusable(format!("longhaul: {error}")),
        PlanError::Output(error) => output_failed(error),
        error @ PlanError::Picture { .. } => failed(error),
    })
}
