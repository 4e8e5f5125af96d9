// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Events to steps: what a trace looks like with 4 KiB pages or superpages, as recorded
//! or mirrored.
//!
//! *View*: one of those four. A mirrored trace is simulated as any trace, so its pages
//! have mappings of their own: an image may lie over another mapping, or outlive it. An
//! access or unmap of a page that was not mapped in the original stays an anomaly
//! whatever is mapped at its place now.
//!
//! *Superpage*: 512 pages. It is mapped while one of them is, and streaming if the
//! latest map in it is.

use crate::blocks::Blocks;
use crate::cache::{Span, Tag};
use crate::classify::{Class, Survey};
use crate::event::Event;
use crate::info::Anomalies;
use crate::mirror::{Groups, Images, Known, LongGroupFinder, LongGroups, Window};
use crate::runs::Runs;
use crate::step::{Operation, Step, flag};
use crate::units::PageRange;

/// Pages of a superpage, as a power of two.
pub(crate) const SUPERPAGE_LG2: u32 = 9;

/// Which pages the cache sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct View {
    pub superpages: bool,
    pub mirrored: bool,
}

impl View {
    pub const COUNT: usize = 4;

    pub fn index(self) -> usize {
        usize::from(self.superpages) + 2 * usize::from(self.mirrored)
    }
}

/// Makes the steps of one view.
#[derive(Debug)]
pub(crate) struct Planner {
    blocks: Blocks,
    images: Option<Images>,
    /// By device: the mapped superpages, and whether they are streaming.
    superpages: Option<Vec<Runs<bool>>>,
    anomalies: Anomalies,
}

impl Planner {
    pub fn new(view: View, devices: usize) -> Self {
        Self {
            blocks: Blocks::new(devices),
            images: view.mirrored.then(|| Images::new(devices)),
            superpages: view.superpages.then(|| vec![Runs::default(); devices]),
            anomalies: Anomalies::default(),
        }
    }

    /// Pages mapped over and pages unmapped while not mapped, so far.
    pub fn anomalies(&self) -> Anomalies {
        self.anomalies
    }

    /// Adds the steps of an event to `steps`. `group` is the first and last page of the
    /// event's group, where it has one; only mirrored views look at it.
    pub fn event(&mut self, known: &Known, group: Option<(u64, u64)>, steps: &mut Vec<Step>) {
        match known.event {
            Event::Map { device, range, .. } => {
                let streaming = known.class == Some(Class::Streaming);
                let opens = known.membership.is_some_and(|membership| membership.opens);
                let (mut first, mut last) = (range.first().number(), range.last().number());
                let mut flags = if opens { flag::OPENS_FIRST } else { 0 };
                if let Some(images) = &mut self.images {
                    (first, last) = images.map(device.index(), range, group);
                    flags = if opens { flag::OPENS_LAST } else { 0 };
                }
                let span = Span {
                    device: device.0,
                    first,
                    last,
                };
                self.map(span, streaming, flags, steps);
            }
            Event::Unmap { device, range } => match self.images.take() {
                None => self.unmap(whole(device.0, range), steps),
                Some(mut images) => {
                    let found = images.unmap(device.index(), range, |(first, last)| {
                        let span = Span {
                            device: device.0,
                            first,
                            last,
                        };
                        self.unmap(span, steps);
                    });
                    self.count_not_mapped(range.pages().0 - found);
                    self.images = Some(images);
                }
            },
            Event::Access { device, page, .. } => {
                let mut tag = Tag {
                    device: device.0,
                    page: page.number(),
                };
                if let Some(images) = &self.images {
                    match images.of(device.index(), tag.page) {
                        Some(image) => tag.page = image,
                        None => return steps.push(Step::fault(tag)),
                    }
                }
                steps.push(self.access(tag));
            }
        }
    }

    fn map(&mut self, span: Span, streaming: bool, flags: u64, steps: &mut Vec<Step>) {
        let replaced = self.blocks.map(span, streaming);
        let over = &mut self.anomalies.map_over_mapped_pages.0;
        *over = over.saturating_add(replaced);
        let (span, replaces) = match &mut self.superpages {
            None => (span, replaced > 0),
            Some(superpages) => {
                let span = super_span(span);
                let runs = &mut superpages[span.device as usize];
                let replaced = runs.insert(span.first, span.last, streaming);
                (span, replaced.0 > 0)
            }
        };
        let mut flags = flags;
        flags |= if streaming { flag::STREAMING } else { 0 };
        flags |= if replaces { flag::REPLACES } else { 0 };
        steps.extend(Step::runs(Operation::Map, span, flags));
    }

    fn unmap(&mut self, span: Span, steps: &mut Vec<Step>) {
        let removed = self.blocks.unmap(span);
        self.count_not_mapped(span.last - span.first + 1 - removed);
        if removed == 0 {
            return;
        }
        let Some(superpages) = &mut self.superpages else {
            steps.extend(Step::runs(Operation::Unmap, span, flag::REMOVES));
            return;
        };
        // Only the superpages at the ends can keep pages.
        let Span {
            device,
            first,
            last,
        } = super_span(span);
        let (blocks, runs) = (&self.blocks, &mut superpages[device as usize]);
        let kept = |number: u64| {
            u64::from(blocks.overlap(Span {
                device,
                first: number << SUPERPAGE_LG2,
                last: ((number + 1) << SUPERPAGE_LG2) - 1,
            }))
        };
        let from = first + kept(first);
        if from > last {
            return;
        }
        let end = last + 1 - kept(last);
        if from < end && runs.take(from, end - 1, |_, _, _| {}).0 > 0 {
            let span = Span {
                device,
                first: from,
                last: end - 1,
            };
            steps.extend(Step::runs(Operation::Unmap, span, flag::REMOVES));
        }
    }

    #[inline]
    fn access(&mut self, tag: Tag) -> Step {
        let Some(superpages) = &self.superpages else {
            return match self.blocks.access(tag) {
                Some(look) => Step::access(tag, look.flags, look.slot),
                None => Step::fault(tag),
            };
        };
        let tag = Tag {
            page: tag.page >> SUPERPAGE_LG2,
            ..tag
        };
        let runs = &superpages[tag.device as usize];
        let Some(streaming) = runs.get(tag.page) else {
            return Step::fault(tag);
        };
        let mut flags = if streaming { flag::STREAMING } else { 0 };
        if runs.get(tag.page + 1).is_some() {
            flags |= flag::NEXT;
        }
        if tag.page > 0 && runs.get(tag.page - 1).is_some() {
            flags |= flag::PREVIOUS;
        }
        Step::access(tag, flags, 0)
    }

    fn count_not_mapped(&mut self, pages: u64) {
        let count = &mut self.anomalies.unmap_not_mapped_pages.0;
        *count = count.saturating_add(pages);
    }
}

fn whole(device: u32, range: PageRange) -> Span {
    Span {
        device,
        first: range.first().number(),
        last: range.last().number(),
    }
}

fn super_span(span: Span) -> Span {
    Span {
        device: span.device,
        first: span.first >> SUPERPAGE_LG2,
        last: span.last >> SUPERPAGE_LG2,
    }
}

/// Takes events in and makes the steps of several views.
#[derive(Debug)]
pub(crate) struct Plans<'a> {
    classes: crate::classify::Classes<'a>,
    groups: Groups,
    window: Window,
    planners: Vec<(View, Planner, Vec<Step>)>,
}

impl<'a> Plans<'a> {
    /// `long` must be the groups that do not fit in `window` events.
    pub fn new(survey: &'a Survey, views: &[View], window: usize, long: LongGroups) -> Self {
        let devices = survey.devices();
        let planner = |&view| (view, Planner::new(view, devices), Vec::new());
        Self {
            classes: survey.classes(),
            groups: Groups::new(devices),
            window: Window::new(window, long),
            planners: views.iter().map(planner).collect(),
        }
    }

    /// Takes the next event in.
    pub fn event(&mut self, event: &Event) {
        let class = self.classes.next(event);
        let known = Known {
            event: *event,
            class,
            membership: self.groups.next(event, class),
        };
        if let Some((known, group)) = self.window.push(known) {
            for (_, planner, steps) in &mut self.planners {
                planner.event(&known, group, steps);
            }
        }
    }

    /// Takes in the events that the window still holds back: no event follows.
    pub fn end(&mut self) {
        while let Some((known, group)) = self.window.pop() {
            for (_, planner, steps) in &mut self.planners {
                planner.event(&known, group, steps);
            }
        }
    }

    /// The steps made since they were last cleared, and the anomalies so far, by view.
    pub fn views(&mut self) -> impl Iterator<Item = (View, Anomalies, &mut Vec<Step>)> {
        let planners = self.planners.iter_mut();
        planners.map(|(view, planner, steps)| (*view, planner.anomalies(), steps))
    }
}

/// The groups whose maps are `window` events or more apart.
pub(crate) fn long_groups<'a>(
    survey: &Survey,
    events: impl Iterator<Item = &'a Event>,
    window: usize,
) -> LongGroups {
    let (mut classes, mut groups) = (survey.classes(), Groups::new(survey.devices()));
    let mut finder = LongGroupFinder::new(survey.devices(), window);
    for event in events {
        let class = classes.next(event);
        finder.observe(event, groups.next(event, class));
    }
    finder.finish()
}
