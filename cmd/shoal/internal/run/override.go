package run

import (
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/job"
)

// Flags that override the file of a job. The goroutine of the command runs what is here.

// overrideGiven sets in a spec what flags say that were given and whose value is also what they are
// without being given, such as --spares 0 and --grow=false: that of the file does not count then.
func (f *runFlags) overrideGiven(flags *pflag.FlagSet, spec *job.Spec) {
	if flags.Changed("spares") {
		spec.Spares = f.spares
	}
	for name, flag := range map[string][2]*bool{"grow": {&spec.Grow, &f.grow},
		"fixed-routes": {&spec.FixedRoutes, &f.fixed},
		"redundant":    {&spec.Redundant, &f.spread}} {
		if flags.Changed(name) {
			*flag[0] = *flag[1]
		}
	}
}
