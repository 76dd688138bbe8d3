//! The program in HiGHS: a column per pattern and recipe, a row per group and slot.

use std::collections::BTreeSet;
use std::time::Duration;

use highs::{HighsModelStatus, HighsSolutionStatus, HighsStatus, Model, Row, RowProblem, Sense};

use super::pattern::{Pattern, Slot};
use super::{EPSILON, Group, OptimiserError, Prices, Solution};
use crate::demand::Recipe;

/// Patterns and recipes that the program may use.
#[derive(Debug, Clone, Default)]
pub struct Columns {
    pub patterns: Vec<Pattern>,
    /// By group.
    pub recipes: Vec<Vec<Recipe>>,
    known: BTreeSet<(usize, Vec<Slot>)>,
}

impl Columns {
    /// Those of a solution.
    pub fn of(groups: &[Group], solution: &Solution) -> Self {
        let mut columns = Self { recipes: vec![Vec::new(); groups.len()], ..Self::default() };
        for pattern in &solution.patterns {
            columns.add_pattern(pattern.clone());
        }
        for (i, group) in groups.iter().enumerate() {
            for member in &group.members {
                columns.add_recipe(i, solution.recipes[*member].clone());
            }
        }
        columns
    }

    /// Adds a pattern; false if it exists.
    pub(crate) fn add_pattern(&mut self, mut pattern: Pattern) -> bool {
        pattern.sort_unstable_by(|a, b| b.cmp(a));
        let new = self.known.insert((usize::MAX, pattern.clone()));
        if new {
            self.patterns.push(pattern);
        }
        new
    }

    /// Adds a recipe of a group; false if it exists.
    pub(crate) fn add_recipe(&mut self, group: usize, mut recipe: Recipe) -> bool {
        recipe.sort_unstable_by(|a, b| b.cmp(a));
        let new = self.known.insert((group, recipe.iter().map(|size| (0, *size)).collect()));
        if new {
            self.recipes[group].push(recipe);
        }
        new
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }
}

pub struct Master<'a> {
    pub groups: &'a [Group],
    /// All slots, by cores, then ways: one row each.
    pub slots: &'a [Slot],
    pub columns: &'a Columns,
}

/// How an integer program ended.
pub struct Solved {
    /// Whether it was solved to its end.
    pub ended: bool,
    /// Patterns, and the recipes of each group's members; none if nothing was found.
    pub solution: Option<(Vec<Pattern>, Vec<Vec<Recipe>>)>,
}

fn failed(status: HighsStatus) -> OptimiserError {
    OptimiserError::Solver(format!("{status:?}"))
}

/// For each row of slots, how many of these slots are of its size or more.
fn at_least(slots: &[Slot], of: impl Iterator<Item = Slot> + Clone) -> Vec<(usize, f64)> {
    let count = |row: &Slot| of.clone().filter(|slot| slot.0 == row.0 && slot.1 >= row.1).count() as f64;
    slots.iter().enumerate().map(|(i, row)| (i, count(row))).filter(|(_, n)| *n > 0.0).collect()
}

fn of_pattern(slots: &[Slot], pattern: &Pattern) -> Vec<(usize, f64)> {
    at_least(slots, pattern.iter().copied())
}

fn of_recipe(slots: &[Slot], group: &Group, recipe: &Recipe) -> Vec<(usize, f64)> {
    at_least(slots, recipe.iter().map(|size| (group.demand.counted_cores, *size)))
}

/// The linear relaxation; it can grow, and continues from its last solution.
pub struct Relaxation {
    model: Option<Model>,
    slot_rows: Vec<Row>,
    group_rows: Vec<Row>,
    slots: Vec<Slot>,
}

impl Relaxation {
    /// Its value, and HiGHS's solution for columns and rows.
    fn solved(&mut self) -> Result<(f64, highs::Solution), OptimiserError> {
        let lost = || OptimiserError::Solver("the model was lost".into());
        let solved = self.model.take().ok_or_else(lost)?.try_solve().map_err(failed)?;
        if solved.status() != HighsModelStatus::Optimal {
            return Err(OptimiserError::Solver(format!("relaxation: {:?}", solved.status())));
        }
        let found = (solved.objective_value(), solved.get_solution());
        self.model = Some(solved.into());
        Ok(found)
    }

    /// Its value and its dual prices.
    pub fn solve(&mut self) -> Result<(f64, Prices), OptimiserError> {
        let (value, solution) = self.solved()?;
        let duals = solution.dual_rows();
        let mut prices = Prices::default();
        // A slot is worth the duals of all rows that it counts in: its own size and all smaller
        // ones with the same number of cores.
        for (i, slot) in self.slots.iter().enumerate() {
            let below = match i.checked_sub(1) {
                Some(before) if self.slots[before].0 == slot.0 => prices.slots[&self.slots[before]],
                _ => 0.0,
            };
            prices.slots.insert(*slot, below + duals[i].max(0.0));
        }
        prices.recipes = duals[self.slots.len()..].iter().map(|dual| dual.max(0.0)).collect();
        Ok((value, prices))
    }

    fn add(&mut self, cost: f64, factors: Vec<(Row, f64)>) -> Result<(), OptimiserError> {
        if let Some(model) = &mut self.model {
            model.try_add_column(cost, 0.0.., factors).map_err(failed)?;
        }
        Ok(())
    }

    pub(crate) fn add_pattern(&mut self, slots: &[Slot], pattern: &Pattern) -> Result<(), OptimiserError> {
        let factors = of_pattern(slots, pattern).into_iter().map(|(i, n)| (self.slot_rows[i], n)).collect();
        self.add(1.0, factors)
    }

    pub(crate) fn add_recipe(
        &mut self,
        groups: &[Group],
        slots: &[Slot],
        group: usize,
        recipe: &Recipe,
    ) -> Result<(), OptimiserError> {
        let mut factors: Vec<(Row, f64)> =
            of_recipe(slots, &groups[group], recipe).into_iter().map(|(i, n)| (self.slot_rows[i], -n)).collect();
        factors.push((self.group_rows[group], 1.0));
        self.add(0.0, factors)
    }
}

impl Master<'_> {
    /// The relaxation over the present columns.
    pub(crate) fn relaxation(&self) -> Result<Relaxation, OptimiserError> {
        let mut model = RowProblem::default().try_optimise(Sense::Minimise).map_err(failed)?;
        model.make_quiet();
        // Presolve would forget where the simplex method was.
        model.set_option("presolve", "off");
        model.set_option("threads", 1);
        let mut row = |least: f64| model.try_add_row(least.., std::iter::empty()).map_err(failed);
        let slot_rows = self.slots.iter().map(|_| row(0.0)).collect::<Result<_, _>>()?;
        let group_rows = self.groups.iter().map(|group| row(group.members.len() as f64)).collect::<Result<_, _>>()?;
        let mut relaxation = Relaxation { model: Some(model), slot_rows, group_rows, slots: self.slots.to_vec() };
        for pattern in &self.columns.patterns {
            relaxation.add_pattern(self.slots, pattern)?;
        }
        for (i, recipes) in self.columns.recipes.iter().enumerate() {
            for recipe in recipes {
                relaxation.add_recipe(self.groups, self.slots, i, recipe)?;
            }
        }
        Ok(relaxation)
    }

    /// What the relaxation uses whole of each column: patterns, then recipes, group by group. Empty
    /// if it is not solved within the time.
    pub(crate) fn whole_parts(&self, limit: Duration) -> Vec<f64> {
        let solved = self.relaxation().and_then(|mut relaxation| {
            relaxation.model.iter_mut().for_each(|model| model.set_option("time_limit", limit.as_secs_f64()));
            relaxation.solved()
        });
        let whole = |amount: &f64| (amount + EPSILON).floor().max(0.0);
        solved.map_or_else(|_| Vec::new(), |(_, solution)| solution.columns().iter().map(whole).collect())
    }

    /// The integer program over the present columns: any solution better than `start`, down to its
    /// bound. It uses at least `kept` of each column, in the order of
    /// [`whole_parts`](Self::whole_parts), and gives up after `nodes` nodes.
    pub(crate) fn integers(&self, start: &Solution, kept: &[f64], nodes: i32, limit: Duration) -> Result<Solved, OptimiserError> {
        let mut problem = RowProblem::default();
        let mut rows: Vec<Vec<(highs::Col, f64)>> = vec![Vec::new(); self.slots.len() + self.groups.len()];
        let most = start.servers() as f64;
        let mut kept = kept.iter().copied();
        let mut least = || kept.next().unwrap_or(0.0);
        let pattern = |_| problem.add_integer_column(1.0, least()..=most);
        let patterns: Vec<highs::Col> = self.columns.patterns.iter().map(pattern).collect();
        for (col, pattern) in patterns.iter().zip(&self.columns.patterns) {
            of_pattern(self.slots, pattern).into_iter().for_each(|(i, n)| rows[i].push((*col, n)));
        }
        for (i, recipes) in self.columns.recipes.iter().enumerate() {
            let members = self.groups[i].members.len() as f64;
            for recipe in recipes {
                let col = problem.add_integer_column(0.0, least()..=members);
                of_recipe(self.slots, &self.groups[i], recipe).into_iter().for_each(|(i, n)| rows[i].push((col, -n)));
                rows[self.slots.len() + i].push((col, 1.0));
            }
        }
        for (i, row) in rows.into_iter().enumerate() {
            match i.checked_sub(self.slots.len()) {
                None => problem.add_row(0.0.., row),
                Some(group) => {
                    let members = self.groups[group].members.len() as f64;
                    problem.add_row(members..=members, row)
                }
            }
        }
        // No fewer than the bound, and fewer than the start.
        problem.add_row(start.bound as f64..=most - 1.0, patterns.iter().map(|col| (*col, 1.0)));
        let mut model = problem.try_optimise(Sense::Minimise).map_err(failed)?;
        model.make_quiet();
        model.set_option("threads", 1);
        model.set_option("time_limit", limit.as_secs_f64());
        // A number of servers is whole.
        model.set_option("mip_abs_gap", 0.999);
        model.set_option("mip_rel_gap", 0.0);
        model.set_option("mip_max_nodes", nodes);
        let solved = model.try_solve().map_err(failed)?;
        let ended = match solved.status() {
            HighsModelStatus::Optimal | HighsModelStatus::Infeasible | HighsModelStatus::UnboundedOrInfeasible => true,
            HighsModelStatus::ReachedTimeLimit | HighsModelStatus::ReachedSolutionLimit => false,
            status => return Err(OptimiserError::Solver(format!("{status:?}"))),
        };
        if solved.primal_solution_status() != HighsSolutionStatus::Feasible {
            return Ok(Solved { ended, solution: None });
        }
        let values = solved.get_solution();
        let mut values = values.columns().iter().map(|value| value.round().max(0.0) as usize);
        let mut used = Vec::new();
        for (pattern, n) in self.columns.patterns.iter().zip(&mut values) {
            used.extend(std::iter::repeat_n(pattern.clone(), n));
        }
        let mut chosen = Vec::new();
        for recipes in &self.columns.recipes {
            chosen.push(recipes.iter().zip(&mut values).flat_map(|(recipe, n)| vec![recipe.clone(); n]).collect());
        }
        Ok(Solved { ended, solution: Some((used, chosen)) })
    }
}
