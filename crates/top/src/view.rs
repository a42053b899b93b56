//! What the person has chosen to see, and what keys change in it.

/// A key, as far as the view cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Backspace,
    Enter,
    Escape,
}

/// Whether the view goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    Yes,
    /// The person has seen enough.
    No,
}

/// By what tenants are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sort {
    /// Jobs in line and under way.
    #[default]
    Work,
    /// Share of what was granted in the last minute.
    Share,
    /// What is missing to the entitlement.
    Behind,
    /// Part of the daily budget that is used.
    Budget,
    Name,
}

impl Sort {
    /// All, in the order in which `s` goes through them.
    pub const ALL: [Self; 5] = [
        Self::Work,
        Self::Share,
        Self::Behind,
        Self::Budget,
        Self::Name,
    ];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Share => "share",
            Self::Behind => "behind",
            Self::Budget => "budget",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self);
        Self::ALL[at.map_or(0, |at| (at + 1) % Self::ALL.len())]
    }
}

/// Characters of a filter.
const FILTER_MAX: usize = 64;

/// What is shown, and where.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    pub sort: Sort,
    pub is_reversed: bool,
    /// Only tenants whose name contains this.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// The selected row of the tenants, from 0.
    pub row: usize,
    /// Nothing moves until the next press.
    pub is_paused: bool,
    pub shows_help: bool,
    /// Colours, beside words and bars.
    pub in_colour: bool,
}

impl View {
    /// Takes a key; `rows` tenants pass the filter, `page` of them are in sight.
    pub fn press(&mut self, key: Key, rows: usize, page: usize) -> Stay {
        if self.is_typing {
            self.type_filter(key);
            return Stay::Yes;
        }
        let last = rows.saturating_sub(1);
        let page = page.max(1);
        match key {
            Key::Char('q') => return Stay::No,
            Key::Escape if self.shows_help => self.shows_help = false,
            Key::Escape if !self.filter.is_empty() => self.filter.clear(),
            Key::Escape => return Stay::No,
            Key::Char('?' | 'h') => self.shows_help = !self.shows_help,
            Key::Char('/') => self.is_typing = true,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Up | Key::Char('k') => self.row = self.row.saturating_sub(1),
            Key::Down | Key::Char('j') => self.row += 1,
            Key::PageUp => self.row = self.row.saturating_sub(page),
            Key::PageDown => self.row += page,
            Key::Home | Key::Char('g') => self.row = 0,
            Key::End | Key::Char('G') => self.row = last,
            Key::Char(_) | Key::Backspace | Key::Enter => {}
        }
        self.row = self.row.min(last);
        Stay::Yes
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Char(c) if self.filter.len() < FILTER_MAX => self.filter.push(c),
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.is_typing = false;
                self.filter.clear();
            }
            Key::Char(_)
            | Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::End => {}
        }
        self.row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(keys: &[Key]) -> (View, Stay) {
        let mut view = View::default();
        let mut stay = Stay::Yes;
        for key in keys {
            stay = view.press(*key, 100, 10);
        }
        (view, stay)
    }

    #[test]
    fn rows_are_walked_and_paged_within_bounds() {
        let row = |keys: &[Key]| pressed(keys).0.row;
        assert_eq!(row(&[Key::Up]), 0);
        assert_eq!(row(&[Key::Down, Key::Char('j')]), 2);
        assert_eq!(row(&[Key::PageDown, Key::PageDown, Key::Up]), 19);
        assert_eq!(row(&[Key::End, Key::PageDown]), 99);
        assert_eq!(row(&[Key::End, Key::Home]), 0);
    }

    #[test]
    fn a_filter_takes_all_letters_until_it_is_entered_or_given_up() {
        let (view, stay) = pressed(&[Key::Char('/'), Key::Char('q'), Key::Char('s')]);
        assert_eq!((view.filter.as_str(), stay), ("qs", Stay::Yes));
        let (view, _) = pressed(&[Key::Char('/'), Key::Char('a'), Key::Enter, Key::Char('s')]);
        assert_eq!((view.filter.as_str(), view.sort), ("a", Sort::Share));
        let keys = [Key::Char('/'), Key::Char('a'), Key::Enter, Key::Escape];
        let (view, stay) = pressed(&keys);
        assert_eq!((view.filter.as_str(), stay), ("", Stay::Yes));
        assert_eq!(pressed(&[Key::Escape]).1, Stay::No);
        assert_eq!(pressed(&[Key::Char('?'), Key::Escape]).1, Stay::Yes);
        assert_eq!(pressed(&[Key::Char('q')]).1, Stay::No);
    }
}
