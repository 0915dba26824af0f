//! The gates of a daemon's channel, which the daemon lends to the channel's publisher.

use crate::attach::connect::Conversation;
use crate::directory::OpenGates;
use crate::error::ChannelError;
use crate::gate::{Gate, settle};
use shmcast_layout::control::{Request, Response};
use shmcast_layout::layout::gate::MAX_GATES;
use shmcast_layout::segment::Segment;

/// Requests the gates from the daemon. The daemon sends one packet for each gate, and then a packet with the page of the gates' figures.
pub(super) fn borrow_gates(
    conversation: &mut Conversation,
    segment: &Segment,
) -> Result<OpenGates, ChannelError> {
    let header = segment.header();
    let mut answer = conversation.ask(&Request::Gates {}, &[])?;
    let mut lent = OpenGates::default();
    loop {
        let file = <[_; 1]>::try_from(answer.1).ok().map(|[file]| file);
        match (answer.0, file) {
            (Response::Gate(terms), Some(page)) if lent.gates.len() < MAX_GATES => {
                let gate = settle(&header.channel, &[Gate::from(terms)], &header.geometry)?;
                lent.gates.extend(gate.into_iter().zip([page]));
            }
            (Response::Done {}, Some(figures)) => {
                lent.figures = Some(figures);
                return Ok(lent);
            }
            (other, _) => return Err(conversation.confused(&other)),
        }
        answer = conversation.receive()?;
    }
}
