// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A subject under a pattern on so many threads, ready to run.

use crate::{
    Failure, Pattern, Sizes, Subject, Worker,
    pattern::{Draw, HANDOFF, Mixed, One},
    worker::solo,
};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::{Mutex, PoisonError};

/// A subject under a pattern. Borrowed from the subject, made once, and run in slices
/// between those of others.
pub struct Contestant<'s> {
    threads: usize,
    outstanding: usize,
    worker: Box<Workers<'s>>,
}

/// Makes the worker of a thread, on that thread.
type Workers<'s> = dyn Fn(usize) -> Result<Box<dyn Worker + 's>, Failure> + Sync + 's;

/// Threads that [`Pattern::ProducerConsumer`] always has.
const PRODUCER_AND_CONSUMER: usize = 2;

impl<'s> Contestant<'s> {
    /// `subject` under `pattern` on so many threads, which share it.
    /// [`Pattern::ProducerConsumer`] always has two.
    pub fn new<S: Subject>(
        subject: &'s S,
        pattern: Pattern,
        sizes: Sizes,
        threads: usize,
    ) -> Contestant<'s>
    where
        S::Token: 's,
    {
        if pattern != Pattern::ProducerConsumer {
            let worker = move |thread| {
                let worker = solo(subject, thread, pattern, sizes);
                worker.ok_or_else(|| Failure::new(format!("{pattern} takes two threads")))
            };
            return Contestant {
                threads,
                outstanding: pattern.outstanding(),
                worker: Box::new(worker),
            };
        }
        let (producer, consumer) = RingBuffer::new(HANDOFF);
        let ends = Mutex::new((Some(producer), Some(consumer)));
        let worker = move |thread| -> Result<Box<dyn Worker + 's>, Failure> {
            let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
            let hand = subject.hand(thread);
            match (thread, ends.0.take(), ends.1.take(), sizes) {
                (0, Some(queue), consumer, sizes) => {
                    ends.1 = consumer;
                    Ok(producing(subject, hand, queue, sizes))
                }
                (1, producer, Some(queue), _) => {
                    ends.0 = producer;
                    Ok(Box::new(Consuming {
                        subject,
                        hand,
                        queue,
                    }))
                }
                _ => Err(Failure::new("a thread came twice, or a third one")),
            }
        };
        Contestant {
            threads: PRODUCER_AND_CONSUMER,
            outstanding: pattern.outstanding(),
            worker: Box::new(worker),
        }
    }

    /// How many threads run it.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// How many ranges are outstanding on each thread.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The part of thread number `thread`, which is the caller.
    ///
    /// # Errors
    /// There is no such part.
    pub fn worker(&self, thread: usize) -> Result<Box<dyn Worker + 's>, Failure> {
        (self.worker)(thread)
    }
}

fn producing<'s, S: Subject>(
    subject: &'s S,
    hand: S::Hand,
    queue: Producer<S::Token>,
    sizes: Sizes,
) -> Box<dyn Worker + 's>
where
    S::Token: 's,
{
    match sizes {
        Sizes::One => Box::new(Producing {
            subject,
            hand,
            queue,
            draw: One,
        }),
        Sizes::Mixed => Box::new(Producing {
            subject,
            hand,
            queue,
            draw: Mixed::default(),
        }),
    }
}

/// Turns of waiting for the other thread before the caller gets to look at its clock.
const TURNS: u32 = 256;

fn waited(ready: impl Fn() -> bool) -> bool {
    (0..TURNS).any(|_| {
        std::hint::spin_loop();
        ready()
    })
}

struct Producing<'s, S: Subject, D> {
    subject: &'s S,
    hand: S::Hand,
    queue: Producer<S::Token>,
    draw: D,
}

impl<S: Subject, D: Draw> Worker for Producing<'_, S, D> {
    fn fill(&mut self, _: &mut dyn FnMut() -> bool) -> Result<(), Failure> {
        Ok(())
    }
    fn run(&mut self, pairs: u32) -> Result<u32, Failure> {
        for done in 0..pairs {
            if self.queue.is_full() && !waited(|| !self.queue.is_full()) {
                return Ok(done);
            }
            let token = self.subject.take(&mut self.hand, self.draw.draw())?;
            let pushed = self.queue.push(token);
            pushed.map_err(|_| Failure::new("the hand-off filled by itself"))?;
        }
        Ok(pairs)
    }
    /// What is handed over is the consumer's to give back.
    fn finish(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

struct Consuming<'s, S: Subject> {
    subject: &'s S,
    hand: S::Hand,
    queue: Consumer<S::Token>,
}

impl<S: Subject> Worker for Consuming<'_, S> {
    fn fill(&mut self, _: &mut dyn FnMut() -> bool) -> Result<(), Failure> {
        Ok(())
    }
    fn run(&mut self, pairs: u32) -> Result<u32, Failure> {
        for done in 0..pairs {
            if self.queue.is_empty() && !waited(|| !self.queue.is_empty()) {
                return Ok(done);
            }
            let Ok(token) = self.queue.pop() else {
                return Ok(done);
            };
            self.subject.give(&mut self.hand, token)?;
        }
        Ok(pairs)
    }
    fn finish(&mut self) -> Result<(), Failure> {
        while let Ok(token) = self.queue.pop() {
            self.subject.give(&mut self.hand, token)?;
        }
        Ok(())
    }
}
