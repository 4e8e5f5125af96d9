// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! A machine: memory, a remapping unit, and CPUs that run bodies on virtual time.

use crate::{
    platform::{Body, Handler, Sim, SimConfig, Stop, Tasks},
    timing::{
        account::Account,
        cpu::{Counts, VirtualCpu},
        params::{Cycles, Params},
        run::{self, CpuRun, Run},
        span::{Span, Window},
        timed::{Entered, Next, Timed},
        topology::{CPUS_MAX, Topology},
        unit::UnitRegisters,
    },
};
use ioatlas_dma::units::{ByteCount, CpuIndex};
use ioatlas_host::arena::ArenaError;
use ioatlas_vtd::driver::{BringUpError, Config, Unit};
use std::{cell::RefCell, rc::Rc, sync::Arc};

/// How large a machine is.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MachineConfig {
    pub topology: Topology,
    /// Frames of memory, for tables, queues and all others that take some.
    pub frames: u64,
    /// Bytes of the heap, if there is one.
    pub heap: Option<ByteCount>,
}

/// The driver of the machine's unit.
pub type MachineUnit = Unit<Sim, Arc<UnitRegisters>>;

/// A machine on virtual time.
pub struct Machine {
    config: MachineConfig,
    params: Params,
    platform: Arc<Sim>,
    registers: Arc<UnitRegisters>,
}

/// Why a machine cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// Too many CPUs, or none.
    #[error(
        "a machine has 1 to {CPUS_MAX} CPUs on sockets of at least 1, not {cpus} on sockets of {cpus_per_socket}"
    )]
    Cpus {
        /// How many were asked for.
        cpus: usize,
        /// On sockets of how many.
        cpus_per_socket: usize,
    },
    /// The heap cannot be made.
    #[error(transparent)]
    Heap(#[from] ArenaError),
}

/// Why a run did not end well.
#[allow(missing_docs)] // its fields say it
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    #[error("CPU {cpu} panicked after {points} points: {message}")]
    Panicked {
        cpu: usize,
        /// Points passed by all.
        points: u64,
        message: String,
    },
    /// CPUs wait for locks that no CPU will release.
    #[error("dead-lock after {points} points: {waiting} of {cpus} CPUs wait for locks for ever")]
    DeadLock {
        /// How many CPUs wait.
        waiting: usize,
        /// How many CPUs there are.
        cpus: usize,
        /// Points passed by all.
        points: u64,
    },
}

/// A timer of CPU 0.
pub struct Timer<'a> {
    /// How often it is due.
    pub period: Cycles,
    /// What it does, with interrupts masked.
    pub tick: Box<dyn Fn(Cycles) + 'a>,
}

impl Machine {
    /// A machine with zeroed memory.
    ///
    /// # Errors
    /// Too many CPUs or none, or no heap ([`MachineError`]).
    pub fn new(config: MachineConfig, params: Params) -> Result<Self, MachineError> {
        let Topology {
            cpus,
            cpus_per_socket,
        } = config.topology;
        if !(1..=CPUS_MAX).contains(&cpus) || cpus_per_socket == 0 {
            return Err(MachineError::Cpus {
                cpus,
                cpus_per_socket,
            });
        }
        let memory = Sim::new(SimConfig {
            frames: config.frames,
            cpus,
        });
        let platform = Arc::new(match config.heap {
            Some(bytes) => memory.with_slabs(bytes)?,
            None => memory,
        });
        Ok(Machine {
            config,
            registers: Arc::new(UnitRegisters::new(platform.clone(), &params)),
            platform,
            params,
        })
    }

    /// The platform that domains are made on.
    pub fn platform(&self) -> &Arc<Sim> {
        &self.platform
    }
    /// What everything costs on it.
    pub fn params(&self) -> &Params {
        &self.params
    }
    /// The registers of its unit.
    pub fn registers(&self) -> &Arc<UnitRegisters> {
        &self.registers
    }
    /// Brings the unit up by the real driver. Once a machine.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bring_up(&self) -> Result<Arc<MachineUnit>, BringUpError> {
        self.bring_up_as(Config::default())
    }
    /// The same, with what the host decides about it.
    ///
    /// # Errors
    /// What the driver says.
    pub fn bring_up_as(&self, config: Config) -> Result<Arc<MachineUnit>, BringUpError> {
        Unit::bring_up(self.platform.clone(), self.registers.clone(), config).map(Arc::new)
    }

    /// Runs `body` on every CPU, from time 0 until all have returned, with cold caches;
    /// `timer` interrupts CPU 0.
    ///
    /// # Errors
    /// [`RunError`]; all bodies are unwound then.
    ///
    /// # Panics
    /// If this thread is inside another run.
    pub fn run<'a>(
        &self,
        span: Span,
        timer: Option<Timer<'a>>,
        body: impl Fn(&VirtualCpu) + 'a,
    ) -> Result<Run, RunError> {
        let cpus = self.config.topology.cpus;
        let frames = self.config.frames as usize;
        let timed = Rc::new(Timed::new(
            self.params.clone(),
            self.config.topology,
            self.platform.clone(),
            frames,
            timer.as_ref().map(|timer| (0, timer.period.0.max(1))),
        ));
        self.registers.begin_run();
        let window = Rc::new(Window::new(span, cpus));
        let done = Rc::new(RefCell::new(vec![None; cpus]));
        let body = Rc::new(body);
        let bodies = (0..cpus).map(|index| {
            let cpu = VirtualCpu {
                run: timed.clone(),
                index,
                platform: self.platform.clone(),
                counts: Default::default(),
                window: window.clone(),
            };
            let (body, done) = (body.clone(), done.clone());
            let run: Body<'a> = Box::new(move || {
                body(&cpu);
                done.borrow_mut()[index] = Some(finished(&cpu));
            });
            (Some(CpuIndex(index)), run)
        });
        let handlers = timer.map(|timer| -> Handler<'a> {
            let timed = timed.clone();
            Box::new(move || (timer.tick)(Cycles(timed.now(timed.running()))))
        });
        let ended = Tasks::run(
            timed.clone(),
            bodies.collect(),
            handlers.into_iter().collect(),
            |tasks| {
                // not while bodies are unwound
                let _entered = Entered::new(timed.clone());
                drive(tasks, &timed, cpus)
            },
        );
        ended?;
        let state = timed.state();
        let cpus = done.take().into_iter().flatten().collect();
        Ok(Run {
            topology: self.config.topology,
            lock_model: self.params.lock_model,
            cpus,
            locks: run::locks(&state),
            lines: run::lines(&state),
            unit: self.registers.used(),
            slices: window.counts(),
            points: state.points,
            switches: state.switches,
        })
    }
}

fn drive(tasks: &mut Tasks<'_>, timed: &Timed, cpus: usize) -> Result<(), RunError> {
    let mut left = cpus;
    loop {
        match timed.next() {
            Next::NoCpu if left == 0 => return Ok(()),
            Next::NoCpu => {
                return Err(RunError::DeadLock {
                    waiting: left,
                    cpus,
                    points: timed.state().points,
                });
            }
            Next::Cpu(cpu) => match tasks.resume(cpu) {
                Stop::Switched => {}
                Stop::Ended => left -= 1,
                Stop::Panicked(message) => {
                    return Err(RunError::Panicked {
                        cpu,
                        points: timed.state().points,
                        message,
                    });
                }
            },
        }
    }
}

fn finished(cpu: &VirtualCpu) -> CpuRun {
    let Counts {
        began,
        ended,
        operations,
        took,
        ..
    } = cpu.counts.get();
    let end = ended.unwrap_or_else(|| cpu.moment());
    let begin = began.unwrap_or(end);
    CpuRun {
        operations,
        took: Cycles(took),
        cycles: Cycles(end.at - begin.at),
        account: Account::since(&end.account, &begin.account),
    }
}
