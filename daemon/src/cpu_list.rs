//! Sets of CPU numbers, in the two forms that Linux writes: lists (`0-3,8`) and hex masks (`ff,00000003`).
//!
//! This module only converts between text and sets. The caller checks which CPUs exist or are allowed.

use std::{collections::BTreeSet, fmt, str::FromStr};

/// The highest accepted CPU number. `NR_CPUS` of Linux is at most 8192. Larger numbers are mistakes, and must not make this program
/// allocate much memory.
const MAX_CPU: usize = 8191;

/// A set of CPU numbers, each 0..=8191. It is printed as Linux prints it: `0-3,8`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<usize>);

/// The reason why a text is not a set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseCpuListError {
    /// A part is neither a number nor a range of two numbers.
    #[error("{0:?} is no CPU number and no range; write it like 0,2-5")]
    NotANumber(String),
    /// A number is higher than any CPU of Linux.
    #[error("CPU {0} is beyond Linux's highest, {MAX_CPU}")]
    TooHigh(usize),
    /// A range runs downwards.
    #[error("the range {0}-{1} runs downwards; write {1}-{0}")]
    Backwards(usize, usize),
    /// A mask holds something other than hex digits and commas.
    #[error("{0:?} is no hex mask of CPUs")]
    NotAMask(String),
}

impl CpuList {
    /// Parses a hex mask such as `ff` or `1,00000003`. The most significant word comes first.
    ///
    /// # Errors
    /// [`ParseCpuListError::NotAMask`] if the text is empty or has anything but hex digits and commas. [`ParseCpuListError::TooHigh`] if a
    /// CPU is beyond 8191.
    pub fn from_mask(text: &str) -> Result<Self, ParseCpuListError> {
        let digits: Vec<u32> = text
            .trim()
            .chars()
            .filter(|&c| c != ',')
            .map(|c| c.to_digit(16))
            .collect::<Option<_>>()
            .filter(|digits: &Vec<u32>| !digits.is_empty())
            .ok_or_else(|| ParseCpuListError::NotAMask(text.trim().to_owned()))?;
        let mut cpus = BTreeSet::new();
        for (nibble, digit) in digits.iter().rev().enumerate() {
            for bit in (0..4).filter(|bit| digit >> bit & 1 == 1) {
                cpus.insert(in_range(nibble * 4 + bit)?);
            }
        }
        Ok(Self(cpus))
    }

    /// Returns the set as a hex mask in words of 32 bits, which sysfs accepts: `1,00000003`. The empty set is `0`.
    #[must_use]
    pub fn to_mask(&self) -> String {
        let words = self.0.last().map_or(1, |cpu| cpu / 32 + 1);
        let mut bits = vec![0_u32; words];
        for cpu in &self.0 {
            bits[cpu / 32] |= 1 << (cpu % 32);
        }
        let top = format!("{:x}", bits[words - 1]);
        bits[..words - 1].iter().rev().fold(top, |mask, word| format!("{mask},{word:08x}"))
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of CPUs in the set.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in rising order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// The CPUs here that are not in `other`.
    #[must_use]
    pub fn minus(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// The CPUs that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// The CPUs that are in at least one of the two sets.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0).copied().collect())
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = ParseCpuListError;

    /// Parses a list such as `0-3,8`. Empty text, and the kernel's `(null)`, mean the empty set.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.is_empty() || text == "(null)" {
            return Ok(Self::default());
        }
        let mut cpus = BTreeSet::new();
        for part in text.split(',') {
            let number = |digits: &str| {
                let cpu = digits
                    .trim()
                    .parse()
                    .map_err(|_| ParseCpuListError::NotANumber(part.trim().to_owned()))?;
                in_range(cpu)
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(ParseCpuListError::Backwards(first, last));
            }
            cpus.extend(first..=last);
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            match last - first {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl serde::Serialize for CpuList {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn in_range(cpu: usize) -> Result<usize, ParseCpuListError> {
    if cpu > MAX_CPU { Err(ParseCpuListError::TooHigh(cpu)) } else { Ok(cpu) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_comes_back_as_the_kernel_writes_it() {
        for text in ["", "0", "0-3", "0,2-5,8", "8191"] {
            assert_eq!(text.parse::<CpuList>().expect(text).to_string(), text);
        }
        assert_eq!("3,1,2,2".parse::<CpuList>().expect("unsorted").to_string(), "1-3");
        assert!("(null)\n".parse::<CpuList>().expect("the kernel's empty set").is_empty());
    }

    #[test]
    fn a_huge_range_is_refused_before_it_is_allocated() {
        assert_eq!("0-4000000000".parse::<CpuList>(), Err(ParseCpuListError::TooHigh(4_000_000_000)));
        assert_eq!("5-2".parse::<CpuList>(), Err(ParseCpuListError::Backwards(5, 2)));
        assert_eq!("0,x".parse::<CpuList>(), Err(ParseCpuListError::NotANumber("x".into())));
        assert!("0,,1".parse::<CpuList>().is_err());
    }

    #[test]
    fn a_mask_keeps_its_word_order() {
        let cpus = CpuList::from_mask("1,00000003\n").expect("a mask of two words");
        assert_eq!(cpus.to_string(), "0-1,32");
        assert_eq!(cpus.to_mask(), "1,00000003");
        let every = CpuList::from_mask("ff").expect("a mask of eight");
        assert_eq!(every.to_string(), "0-7");
        assert_eq!(CpuList::default().to_mask(), "0");
        assert!(CpuList::from_mask("xyz").is_err());
        assert!(CpuList::from_mask("").is_err());
        assert!(CpuList::from_mask(&"f".repeat(4096)).is_err());
    }
}
