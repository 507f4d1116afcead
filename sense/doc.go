// Package sense turns what is measured into what can be judged: samples into series, and series
// into numbers that policies compare. Its folders hold detectors and probes. Time comes in as
// numbers; there is no clock here.
package sense
