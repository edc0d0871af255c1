//! Checks of the tree's invariants, for tests and the fuzzer.

use super::XArray;
use super::entry::{MARKS, Raw, Slot};
use super::node::{NONE, SHIFT, SLOTS};

impl XArray {
    /// Checks every invariant of the tree. Returns the number of its nodes.
    ///
    /// # Errors
    /// Describes the first violation.
    pub fn check(&self) -> Result<usize, String> {
        match self.root.head().slot() {
            Slot::Empty if self.head_marks != 0 => Err("an empty head is marked".to_owned()),
            Slot::Empty | Slot::Entry(_) => Ok(0),
            Slot::Sibling(_) => Err("the head is a sibling".to_owned()),
            Slot::Node { id, shift } => {
                if self.head_marks != 0 {
                    return Err("the head is a node and marked itself".to_owned());
                }
                let node = self.node(id);
                let lone = node.present() == 1;
                if lone && (shift == 0 || matches!(node.slot(0).slot(), Slot::Node { .. })) {
                    return Err(format!("the top node of shift {shift} is superfluous"));
                }
                self.check_node(id, shift, NONE, 0)
            }
        }
    }

    fn check_node(&self, id: u32, shift: u32, parent: u32, offset: u32) -> Result<usize, String> {
        let node = self.node(id);
        let at = format!("node {id} of shift {shift}");
        if (node.shift(), node.parent(), node.offset()) != (shift, parent, offset) {
            return Err(format!("{at} has the wrong parent, offset or shift"));
        }
        if node.present() == 0 {
            return Err(format!("{at} is empty"));
        }
        let mut nodes = 1;
        let (mut present, mut values) = (0, 0);
        let mut marks = [0; MARKS];
        let mut offset = 0;
        while offset < SLOTS {
            let raw = node.slot(offset);
            let mut width = 1;
            match raw.slot() {
                Slot::Empty => {}
                Slot::Sibling(of) => {
                    return Err(format!("{at}, slot {offset}: misplaced sibling of {of}"));
                }
                Slot::Entry(_) => {
                    width = node.width(offset);
                    if !width.is_power_of_two() || offset % width != 0 || width == SLOTS {
                        return Err(format!("{at}, slot {offset}: an entry of invalid width {width}"));
                    }
                    for (mark, marks) in marks.iter_mut().enumerate() {
                        *marks |= node.marks(mark) & 1 << offset;
                    }
                }
                Slot::Node { id: child, shift: below } => {
                    if below + SHIFT != shift {
                        return Err(format!("{at}, slot {offset}: a child of shift {below}"));
                    }
                    nodes += self.check_node(child, below, id, offset)?;
                    for (mark, marks) in marks.iter_mut().enumerate() {
                        *marks |= u64::from(self.node(child).marks(mark) != 0) << offset;
                    }
                }
            }
            let bits = ((1u128 << width) - 1) as u64;
            if raw != Raw::EMPTY {
                present |= bits << offset;
            }
            if raw.is_value() {
                values |= bits << offset;
            }
            offset += width;
        }
        if (present, values) != (node.present(), node.values()) {
            return Err(format!("{at}: the bitmaps do not match the slots"));
        }
        for (mark, marks) in marks.iter().enumerate() {
            if *marks != node.marks(mark) {
                return Err(format!("{at}: mark {mark} is {:x}, should be {marks:x}", node.marks(mark)));
            }
        }
        Ok(nodes)
    }
}
