// SPDX-License-Identifier: Apache-2.0 OR BSD-3-Clause
//! Designs in words, for command lines and tables.

use super::{Design, allocators, policies, presets};
use crate::{
    domain::{COLOUR_SPAN, DomainConfig, ListOrder, Offset},
    table::Reclaim,
    units::PageCount,
};
use alloc::{
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// Words that name no design.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // its fields say it
pub enum DesignError {
    /// The first word is neither a preset nor an allocator.
    #[error("`{word}` is neither a system ({presets}) nor an allocator ({allocators})")]
    Unknown {
        word: String,
        /// What systems there are.
        presets: String,
        /// What allocators there are.
        allocators: String,
    },
    /// An allocator without a policy, or a second word that is none.
    #[error("`{allocator}` needs a policy ({policies}), and `{word}` is none")]
    Policy {
        allocator: &'static str,
        word: String,
        /// The policies that there are.
        policies: String,
    },
    /// An option that does not exist, or a value that it does not have.
    #[error(
        "`{word}` is no option (order=ascending|descending, offset=coherent|fixed:PAGES of 1 to 65535, leaf=4k|2m|1g, reclaim=covered|emptied|never)"
    )]
    Option { word: String },
}

fn list(names: impl Iterator<Item = &'static str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// An offset that leaves room for a second colour.
fn offset(words: &str) -> Option<PageCount> {
    let pages = words.parse().ok().map(PageCount)?;
    (PageCount(0) < pages && pages < COLOUR_SPAN).then_some(pages)
}

const LEAVES: [(&str, u32); 3] = [("4k", 1), ("2m", 2), ("1g", 3)];

impl Design {
    /// The design that `words` name, as the theory of [`crate::design`] has it.
    ///
    /// # Errors
    /// [`DesignError`], with the word that names nothing.
    pub fn parse(words: &str) -> Result<Self, DesignError> {
        let mut words = words.split(',').map(str::trim);
        let first = words.next().unwrap_or_default();
        let mut design = match presets().find(|p| p.name == first) {
            // `freebsd` alone is the system, before a policy the allocator
            Some(preset) if !allocators().any(|a| a.name == first) => preset.design,
            preset => {
                let allocator = allocators().find(|a| a.name == first);
                let mut rest = words.clone();
                let policy = rest
                    .next()
                    .and_then(|word| policies().find(|p| p.name == word));
                match (allocator, policy, preset) {
                    (Some(allocator), Some(policy), _) => {
                        words = rest;
                        DomainConfig::new(allocator.config, policy.config).into()
                    }
                    (_, None, Some(preset)) => preset.design,
                    (Some(allocator), None, None) => {
                        return Err(DesignError::Policy {
                            allocator: allocator.name,
                            word: words.next().unwrap_or_default().to_string(),
                            policies: list(policies().map(|p| p.name)),
                        });
                    }
                    (None, ..) => {
                        return Err(DesignError::Unknown {
                            word: first.to_string(),
                            presets: list(presets().map(|p| p.name)),
                            allocators: list(allocators().map(|a| a.name)),
                        });
                    }
                }
            }
        };
        for word in words {
            design.set(word).ok_or_else(|| DesignError::Option {
                word: word.to_string(),
            })?;
        }
        Ok(design)
    }

    fn set(&mut self, word: &str) -> Option<()> {
        let (option, value) = word.split_once('=')?;
        match option {
            "order" => {
                self.domain.order = match value {
                    "ascending" => ListOrder::Ascending,
                    "descending" => ListOrder::Descending,
                    _ => return None,
                }
            }
            "offset" => {
                self.domain.offset = match value.split_once(':') {
                    None if value == "coherent" => Offset::Coherent,
                    Some(("fixed", pages)) => Offset::Fixed(offset(pages)?),
                    _ => return None,
                }
            }
            "leaf" => {
                let leaf = LEAVES.iter().find(|(name, _)| *name == value)?;
                self.tables.largest_leaf = leaf.1;
            }
            "reclaim" => {
                self.tables.reclaim = match value {
                    "covered" => Reclaim::Covered,
                    "emptied" => Reclaim::Emptied,
                    "never" => Reclaim::Never,
                    _ => return None,
                }
            }
            _ => return None,
        }
        Some(())
    }
}

/// In words that [`Design::parse`] takes; sizes of allocator and policy apart.
impl fmt::Display for Design {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Design { domain, tables } = self;
        write!(f, "{},{}", domain.allocator.name(), domain.policy.name())?;
        if domain.order == ListOrder::Descending {
            write!(f, ",order=descending")?;
        }
        match domain.offset {
            Offset::None => {}
            Offset::Fixed(pages) => write!(f, ",offset=fixed:{pages}")?,
            Offset::Coherent => write!(f, ",offset=coherent")?,
        }
        for (name, level) in &LEAVES[1..] {
            if *level == tables.largest_leaf {
                write!(f, ",leaf={name}")?;
            }
        }
        match tables.reclaim {
            Reclaim::Covered => {}
            Reclaim::Emptied => write!(f, ",reclaim=emptied")?,
            Reclaim::Never => write!(f, ",reclaim=never")?,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn options_are_taken_and_printed() {
        let words = "magazine,strict,order=descending,offset=fixed:64,leaf=2m,reclaim=never";
        let design = Design::parse(words).unwrap();
        assert_eq!(design.domain.order, ListOrder::Descending);
        assert_eq!(design.domain.offset, Offset::Fixed(PageCount(64)));
        assert_eq!(design.tables.largest_leaf, 2);
        assert_eq!(design.tables.reclaim, Reclaim::Never);
        assert_eq!(design.to_string(), words);
        let words = "rbtree,solaris,offset=coherent";
        let design = Design::parse(words).unwrap();
        assert_eq!(design.domain.offset, Offset::Coherent);
        assert_eq!(design.to_string(), words);
    }

    #[test]
    fn what_names_nothing_is_named() {
        let error = |words| Design::parse(words).unwrap_err().to_string();
        assert!(error("").starts_with("`` is neither a system (linux"));
        assert!(error("best").contains("`best` is neither"));
        assert!(error("rbtree").starts_with("`rbtree` needs a policy (strict"));
        assert!(error("rbtree,lax").ends_with("and `lax` is none"));
        assert!(error("linux,leaf=3m").starts_with("`leaf=3m` is no option"));
        for value in [
            "-1",
            "64",
            "fixed",
            "fixed:",
            "fixed:0",
            "fixed:-1",
            "fixed:65536",
            "coherent:1",
            "",
        ] {
            let (words, what) = (format!("linux,offset={value}"), format!("`offset={value}`"));
            let error = Design::parse(&words).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{what} is no option")),
                "{error}"
            );
        }
    }
}
