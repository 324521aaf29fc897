//! The events of a job, as they travel over the control socket: the first and the last of them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::job_state::JobState;

/// The number of events of a job that are kept: a job can make them without end.
pub const MAX_KEPT_EVENTS: usize = 1000;
/// The number of these that are the first ones, which say how it began.
const MAX_FIRST_EVENTS: usize = 200;
/// The length, in bytes, of what is kept of the beginning and of the end of a long text: names of files are part of some.
const MAX_TEXT_PART_BYTES: usize = 2048;

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The time of the event.
    pub at: DateTime<Utc>,
    /// The state of the job at that time.
    pub state: JobState,
    /// The event in one line.
    pub text: String,
    /// The number of events just before it that are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out: usize,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl JobEvent {
    /// An event; of a long `text` only the beginning and the end.
    pub fn new(at: DateTime<Utc>, state: JobState, mut text: String) -> Self {
        if text.len() > 2 * MAX_TEXT_PART_BYTES {
            let begin = text.floor_char_boundary(MAX_TEXT_PART_BYTES);
            let end = text.ceil_char_boundary(text.len() - MAX_TEXT_PART_BYTES);
            text.replace_range(begin..end, "…");
        }
        Self { at, state, text, left_out: 0 }
    }
}

/// Adds an event to those of a job, and leaves out one after the first of them where there are too many.
pub fn push_event(events: &mut Vec<JobEvent>, event: JobEvent) {
    events.push(event);
    if events.len() > MAX_KEPT_EVENTS {
        let gone = events.remove(MAX_FIRST_EVENTS);
        events[MAX_FIRST_EVENTS].left_out += gone.left_out + 1;
    }
}

/// Counts the events, including those that are left out.
pub fn event_count(events: &[JobEvent]) -> usize {
    events.iter().map(|event| event.left_out + 1).sum()
}

/// The events after the first `seen`, as far as they are kept.
pub fn events_after(events: &[JobEvent], seen: usize) -> impl Iterator<Item = &JobEvent> {
    let numbered = events.iter().scan(0, |number, event| {
        *number += event.left_out + 1;
        Some((*number, event))
    });
    numbered.filter(move |(number, _)| *number > seen).map(|(_, event)| event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: impl ToString) -> JobEvent {
        JobEvent::new(DateTime::UNIX_EPOCH, JobState::Running, text.to_string())
    }

    #[test]
    fn events_beyond_their_limit_are_counted_and_the_first_and_last_are_kept() {
        let mut events = Vec::new();
        let all = MAX_KEPT_EVENTS + 50;
        (0..all).for_each(|number| push_event(&mut events, event(number)));
        assert_eq!((events.len(), event_count(&events)), (MAX_KEPT_EVENTS, all));
        let kept: Vec<_> = events.iter().map(|event| event.text.parse::<usize>().unwrap()).collect();
        let expected: Vec<_> = (0..MAX_FIRST_EVENTS).chain(MAX_FIRST_EVENTS + 50..all).collect();
        assert_eq!(kept, expected);
        assert_eq!(events[MAX_FIRST_EVENTS].left_out, 50);
        // As the next agent reads them.
        let mut again = Vec::new();
        events.iter().for_each(|event| push_event(&mut again, event.clone()));
        assert_eq!(again, events);
        for (seen, first) in
            [(0, 0), (7, 7), (MAX_FIRST_EVENTS + 20, MAX_FIRST_EVENTS + 50), (all - 1, all - 1)]
        {
            let next = events_after(&events, seen).next().map(|event| event.text.clone());
            assert_eq!(next, Some(first.to_string()), "{seen}");
        }
        assert_eq!(events_after(&events, all).count(), 0);
    }

    #[test]
    fn event_of_a_long_text_has_its_beginning_and_its_end() {
        let part = "é".repeat(MAX_TEXT_PART_BYTES / 2);
        assert_eq!(event(format!("{part}x{part}")).text, format!("{part}…{part}"));
        assert_eq!(event("short").text, "short");
    }
}
