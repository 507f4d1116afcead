// Package cost predicts what work costs: all-reduces and training steps in seconds, from models of
// links and processors that are fitted to what was measured. It knows nothing of who decides; the
// packages under decide compare its predictions.
//
// The predictions play the work through on package sim. Everything is a pure function of its
// arguments, so that all agents of a job predict the same.
package cost
