//! Moving a flow's half from the worker that pairs to the one that its LAN's packets go to, once
//! and with nothing reordered (`docs/adr/0020-workers-by-queue-pair.md`).
//!
//! Packets of the LAN go to the worker that their queue pair names, whether or not it has the flow.
//! Records of the peer go to the host pair's home worker until the peer has heard of the other one.
//! The two workers tell each other what concerns the flow through a queue in each direction, first
//! in, first out.

use std::collections::VecDeque;

/// A message of the home worker's to the queue pair's.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ToOwner<F, P, R> {
    /// The flow is yours.
    Flow(F),
    /// A stray that came after the flow had left.
    Returned(P),
    /// No stray follows.
    Settled,
    /// A record of the peer's for the flow.
    Record(R),
}

/// A message of the queue pair's worker to the home worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ToHome<P> {
    /// A packet of the LAN for a flow that is not here.
    Stray(P),
    /// The flow has come: no stray follows.
    NoMore,
    /// The flow is over. Strays that follow are for another one.
    Over,
}

/// The home worker's side of one flow.
///
/// # Driver contract
/// Every message of [`ToOwner`] that a method returns goes to the owner's queue, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Home<F> {
    /// The flow is not paired, and is here.
    Here(F),
    /// It was handed over, and strays of it may be under way.
    Leaving,
    /// It was handed over, and no stray of it is under way.
    Gone,
}

/// Where a packet or a record is handled.
#[derive(Debug, PartialEq, Eq)]
pub enum Handling<'a, F, X, M> {
    /// Here, by this flow.
    Here(&'a mut F, X),
    /// At the other worker, by this message.
    There(M),
}

impl<F> Home<F> {
    /// The flow's queue pair is known: it moves to that one's worker. `None`: it has moved before.
    pub fn hand_over<P, R>(&mut self) -> Option<ToOwner<F, P, R>> {
        match std::mem::replace(self, Self::Leaving) {
            Self::Here(flow) => Some(ToOwner::Flow(flow)),
            before => {
                *self = before;
                None
            }
        }
    }

    /// A record of the peer's for the flow.
    pub fn record<P, R>(&mut self, record: R) -> Handling<'_, F, R, ToOwner<F, P, R>> {
        match self {
            Self::Here(flow) => Handling::Here(flow, record),
            Self::Leaving | Self::Gone => Handling::There(ToOwner::Record(record)),
        }
    }

    /// A packet of the LAN that came to the owner when the flow was not there.
    pub fn stray<P, R>(&mut self, packet: P) -> Handling<'_, F, P, ToOwner<F, P, R>> {
        match self {
            Self::Here(flow) => Handling::Here(flow, packet),
            Self::Leaving | Self::Gone => Handling::There(ToOwner::Returned(packet)),
        }
    }

    /// [`ToHome::NoMore`] came. `None`: it says nothing new.
    pub fn no_more<P, R>(&mut self) -> Option<ToOwner<F, P, R>> {
        matches!(self, Self::Leaving).then(|| {
            *self = Self::Gone;
            ToOwner::Settled
        })
    }
}

/// The side of the worker that the LAN's packets for the queue pair go to.
///
/// # Driver contract
/// Every message of [`ToHome`] that a method returns goes to home's queue, in this order. On
/// [`ToOwner::Settled`] call [`Owner::next_held`] until `None`, before anything else of the flow.
///
/// # Bounds
/// At most `bound` packets are held back. One beyond is lost, as if the LAN had lost it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Owner<F, P> {
    /// The flow is at home, or there is none.
    Elsewhere,
    /// It has come, and packets that came before may return yet: newer ones are held back.
    Settling {
        /// The flow.
        flow: F,
        /// Packets held back, in the order in which they came.
        held: VecDeque<P>,
    },
    /// The flow is here, and nothing of it is anywhere else.
    Here(F),
}

/// The fate of a packet of the LAN.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrived<'a, F, P> {
    /// This flow handles it.
    Handle(&'a mut F, P),
    /// It goes home.
    Stray(ToHome<P>),
    /// It is held back.
    Held,
    /// It is lost: too many are held back.
    Full(P),
}

impl<F, P> Owner<F, P> {
    /// A packet of the LAN for the queue pair; at most `bound` are held back.
    pub fn arrived(&mut self, packet: P, bound: usize) -> Arrived<'_, F, P> {
        match self {
            Self::Elsewhere => Arrived::Stray(ToHome::Stray(packet)),
            Self::Settling { held, .. } if held.len() >= bound => Arrived::Full(packet),
            Self::Settling { held, .. } => {
                held.push_back(packet);
                Arrived::Held
            }
            Self::Here(flow) => Arrived::Handle(flow, packet),
        }
    }

    /// [`ToOwner::Flow`] came.
    ///
    /// # Errors
    /// There is one already, which stays: home has sent two.
    pub fn take_in(&mut self, flow: F) -> Result<ToHome<P>, F> {
        match self {
            Self::Elsewhere => {
                *self = Self::Settling { flow, held: VecDeque::new() };
                Ok(ToHome::NoMore)
            }
            Self::Settling { .. } | Self::Here(_) => Err(flow),
        }
    }

    /// The flow that handles [`ToOwner::Returned`] and [`ToOwner::Record`]; `None`: it is over, and
    /// so are they.
    pub fn flow(&mut self) -> Option<&mut F> {
        match self {
            Self::Elsewhere => None,
            Self::Settling { flow, .. } | Self::Here(flow) => Some(flow),
        }
    }

    /// The next packet that was held back, after [`ToOwner::Settled`]. With `None` all are handled,
    /// and the flow is here alone.
    pub fn next_held(&mut self) -> Option<(&mut F, P)> {
        if matches!(self, Self::Settling { held, .. } if held.is_empty())
            && let Self::Settling { flow, .. } = std::mem::replace(self, Self::Elsewhere)
        {
            *self = Self::Here(flow);
        }
        match self {
            Self::Settling { flow, held } => held.pop_front().map(|packet| (flow, packet)),
            Self::Elsewhere | Self::Here(_) => None,
        }
    }

    /// The flow is over; it is returned with what home is to be told. `None`: there is none.
    pub fn end(&mut self) -> Option<(F, ToHome<P>)> {
        match std::mem::replace(self, Self::Elsewhere) {
            Self::Elsewhere => None,
            Self::Settling { flow, .. } | Self::Here(flow) => Some((flow, ToHome::Over)),
        }
    }
}

#[cfg(test)]
mod tests;
