// Package topo holds the values that say who takes part in a job: ranks, generations, groups. It has no behaviour
// beyond them, so that every other package can share it.
package topo

// Rank numbers the workers of one generation, from 0.
type Rank int

// Generation numbers the agreed memberships of a job, from 1.
type Generation uint64

// GroupID names a set of ranks that call collectives together. World is everyone.
type GroupID uint32

// World is the group of all ranks.
const World GroupID = 0
