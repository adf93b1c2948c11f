//! Which class's numbers stand where in a [`Snapshot`](crate::telemetry::Snapshot).

use config::{MAX_CLASSES, Policy};

/// The cells of a policy's classes. A class keeps its cell from policy to policy by its name, so
/// that its series go on; one with another name begins at 0 in a cell that is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    owners: [Option<String>; MAX_CLASSES],
    /// Cells of each class, in the policy's order.
    order: Vec<usize>,
}

impl Cells {
    /// For the first policy: each class in the cell of its own number.
    pub fn new(policy: &Policy) -> Self {
        Self { owners: Default::default(), order: Vec::new() }.next(policy)
    }

    /// For the policy that follows.
    #[must_use]
    pub fn next(&self, policy: &Policy) -> Self {
        let find = |name: &str| self.owners.iter().position(|owner| owner.as_deref() == Some(name));
        let kept: Vec<_> = policy.classes().iter().map(|class| find(&class.name)).collect();
        let mut free = (0..MAX_CLASSES).filter(|cell| !kept.contains(&Some(*cell)));
        let order: Vec<usize> = kept.iter().filter_map(|cell| cell.or_else(|| free.next())).collect();
        let mut owners = <[Option<String>; MAX_CLASSES]>::default();
        for (cell, class) in order.iter().zip(policy.classes()) {
            if let Some(owner) = owners.get_mut(*cell) {
                *owner = Some(class.name.clone());
            }
        }
        Self { owners, order }
    }

    /// The cell of each class, in the policy's order.
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Each class's name and cell, in the policy's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.order.iter().filter_map(|cell| Some((self.owners.get(*cell)?.as_deref()?, *cell)))
    }

    /// The cells that another class has than before.
    pub fn changed<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let differ = |(index, (now, before))| (now != before).then_some(index);
        self.owners.iter().zip(&before.owners).enumerate().filter_map(differ)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn policy(names: &[&str]) -> Policy {
        let last = names.len() - 1;
        let class = |(index, name): (usize, &&str)| {
            let matches = if index == last { "" } else { "match = { dscp = [1] }\n" };
            format!("[[class]]\nname = \"{name}\"\n{matches}scheme = \"sr\"\n")
        };
        Policy::parse(Path::new("x"), &names.iter().enumerate().map(class).collect::<String>()).unwrap()
    }

    #[test]
    fn a_class_keeps_its_cell_and_a_new_one_gets_a_free_one() {
        let first = Cells::new(&policy(&["a", "b", "c"]));
        assert_eq!(first.iter().collect::<Vec<_>>(), [("a", 0), ("b", 1), ("c", 2)]);
        let second = first.next(&policy(&["c", "x", "a", "y"]));
        assert_eq!(second.iter().collect::<Vec<_>>(), [("c", 2), ("x", 1), ("a", 0), ("y", 3)]);
        assert_eq!(second.order(), [2, 1, 0, 3]);
        assert_eq!(second.changed(&first).collect::<Vec<_>>(), [1, 3]);
        let third = second.next(&policy(&["c"]));
        assert_eq!(third.order(), [2]);
        assert_eq!(third.changed(&second).collect::<Vec<_>>(), [0, 1, 3], "also those that nobody has now");
        let full = third.next(&policy(&["1", "2", "3", "4", "5", "6", "7", "8"]));
        assert_eq!(full.order(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(full.changed(&third).count(), 8);
    }
}
