// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! `ioatlas capture`: what this machine's drivers map and unmap, from the kernel's tracepoints.
//!
//! Tracing goes on in a tracefs instance of our own ([`tracefs`]), so that no other tracing is
//! disturbed and one `rmdir` undoes all. The text of its `trace_pipe` is read while the kernel
//! writes ([`recording`]), kept compressed in a file without a name beside the target ([`text`]),
//! and imported when all is over, as `trace convert` would.
//!
//! # What is complete
//!
//! All CPUs begin at the same moment: events are enabled while the instance is off, and then it is
//! switched on. Its buffers do not overwrite (`options/overwrite` is 0). A buffer that is full
//! drops what is new until it was read, so a CPU has no ragged beginning, as the rings of a flight
//! recorder have; gaps can be anywhere after. The kernel counts drops by CPU (`per_cpu/cpu*/stats`)
//! but does not tell in the text where they were, as it does of what it overwrites. So the loss is
//! told to the importer first of all, in the kernel's own words, and stays in the trace as a note.
//!
//! `trace_pipe` is read without waiting, every [`recording::PAUSE`]: a reader that waits would be
//! woken up by the events themselves, at the cost of the drivers that are watched.
//!
//! # Not handled
//!
//! One thread reads, and the kernel formats text while it does: where events come faster for long,
//! the buffers fill. Whether names of tasks are known depends on a setting of the whole kernel
//! (`options/record-cmd`, on unless switched off, which instances do not have), which is left as it
//! is. What the events themselves leave out, [`Plan::remarks`] says, and it is not counted.

mod arguments;
mod counting;
mod error;
mod recording;
mod script;
mod stop;
mod summary;
mod text;
mod tracefs;

pub(crate) use arguments::LiveCaptureArguments;
pub use error::CaptureError;

use crate::Answer;
use crate::convert::write_trace;
use crate::error::Error;
use crate::input::without_endings;
use crate::output::Target;
use crate::progress::Spinner;
use ioatlas_iotlb::import::{Assume, Capture, Format, Options};
use ioatlas_iotlb::{Limits, Note, Topic};
use recording::{Ended, Recording};
use std::io::{self, Cursor, Read, Write};
use std::path::{Path, PathBuf};
use stop::Stop;
use summary::Summary;
use text::Text;
use tracefs::{Left, Plan, Tracefs};

pub(crate) fn run(arguments: &LiveCaptureArguments) -> Answer {
    if arguments.bpftrace {
        return counting::script(arguments).into();
    }
    if arguments.print {
        return script::script(arguments).into();
    }
    match capture(arguments) {
        Ok((summary, errors)) => {
            let mut answer = Answer::show(&summary, arguments.json, Summary::to_string);
            answer.errors.extend(errors.into_iter().map(Error::from));
            answer
        }
        Err(error) => error.into(),
    }
}

/// Records and writes the trace; the errors are of what is wrong although it is written.
fn capture(arguments: &LiveCaptureArguments) -> Result<(Summary, Vec<CaptureError>), Error> {
    let target = Target::prepare(&arguments.output)?.confidential();
    let tracefs = Tracefs::find(arguments.tracefs.as_deref())?;
    let plan = tracefs.plan(&arguments.device)?;
    for what in &plan.remarks {
        say(what);
    }
    let mut text = Text::beside(&target)?;
    let stop = Stop::listen().map_err(CaptureError::Signals)?;
    for left in tracefs.clear_up() {
        say(&match left {
            Left::Removed(path) => format!(
                "removed {}, left by a capture that was killed",
                path.display()
            ),
            Left::Stays(path, why) => format!(
                "{}, left by a capture that was killed, stays: {why}",
                path.display()
            ),
        });
    }
    let instance = tracefs.instance()?;
    let mut recording = recording::record(&instance, &plan, arguments, &stop, &mut text)?;
    let mut errors: Vec<CaptureError> = instance.remove().err().into_iter().collect();
    // from here on a signal ends the program
    stop.let_go();
    let path = target.path().to_path_buf();
    if text.bytes() == 0 {
        return Err(Error::from(match recording.full {
            Some(source) => CaptureError::NoRoom { path, source },
            None => CaptureError::NothingRecorded {
                seconds: recording.seconds,
                events: plan.events,
                devices: arguments.device.iter().map(ToString::to_string).collect(),
            },
        }));
    }
    let full = recording.full.take();
    let summary = import(arguments, &target, &plan, &recording, &mut text)?;
    errors.extend(full.map(|source| CaptureError::DiskFull {
        path,
        seconds: recording.seconds,
        asked: arguments.seconds.as_secs_f64(),
        source,
    }));
    Ok((summary, errors))
}

/// Writes the trace that the kernel's text is.
fn import(
    arguments: &LiveCaptureArguments,
    target: &Target,
    plan: &Plan,
    recording: &Recording,
    text: &mut Text,
) -> Result<Summary, Error> {
    let finished = text.finish(&recording.lost, &recording.tasks);
    let finished = finished.map_err(|source| Error::Output {
        path: target.path().into(),
        source,
    });
    let _told = Spinner::new("writes the trace");
    let kept = kept_text(target.path());
    let options = Options {
        from: Some(Format::Ftrace),
        // the trace is what was recorded; what is assumed is the reader's to say
        assume: Assume::None,
        ..Options::default()
    };
    let name = kept.display().to_string();
    let written = finished
        .and_then(|()| Ok(Capture::new(&name, &*text, options, Limits::default())?))
        .and_then(|mut capture| {
            let time = Note {
                topic: Topic::Recorded,
                count: (recording.seconds * 1e9) as u64,
            };
            let time = Cursor::new(match recording.ended {
                // the text ends before the recording did
                Ended::DiskFull => String::new(),
                Ended::Time | Ended::Signal => format!("{time}\n"),
            });
            write_trace(&mut (&mut capture).chain(time), target)?;
            let notes = capture.notes().to_vec();
            let bytes = std::fs::metadata(target.path());
            let bytes = bytes.map_or(0, |metadata| metadata.len());
            Ok(Summary::new(arguments, plan, recording, notes, bytes))
        });
    written.map_err(|error| {
        // what the kernel said is not lost, if there is room
        let mut why = error.to_string();
        let there = text.keep(&kept);
        if let Ok(there) = &there {
            why = why.replacen(&name, &there.display().to_string(), 1);
        }
        match (error, there) {
            // a kernel that is newer than this program
            (Error::Trace(_) | Error::Import(_), Ok(kept)) => {
                CaptureError::NotUnderstood { why, kept }.into()
            }
            (_, Ok(kept)) => CaptureError::NotWritten { why, kept }.into(),
            (error, Err(_)) => error,
        }
    })
}

/// Where the kernel's text goes if it cannot be imported: `a.trace.zst` becomes `a.txt.zst`.
fn kept_text(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let stem = without_endings(&name, &[".zst", ".gz", ".trace"]);
    output.with_file_name(format!("{stem}.txt.zst"))
}

/// Tells a person, whatever becomes of the results.
fn say(what: &str) {
    // a remark that cannot be read is no failure
    let _ = writeln!(io::stderr(), "{what}");
}
