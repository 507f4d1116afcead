package client

import (
	"fmt"
	"os"
	"strconv"
)

// launchers are other launchers: what people call each, and the variable in which it tells a
// process how many it has started. Not SLURM_NTASKS, which the script of a batch job has too though
// it runs once.
var launchers = []struct{ name, variable string }{
	{"torchrun", "WORLD_SIZE"},
	{"mpirun of Open MPI", "OMPI_COMM_WORLD_SIZE"},
	{"mpirun of MPICH or Intel MPI", "PMI_SIZE"},
	{"srun", "SLURM_STEP_NUM_TASKS"},
}

// startedByAnother returns an error if the environment says that another launcher has started this
// process as one of several: each would be a job of one. Join calls it.
func startedByAnother() error {
	for _, l := range launchers {
		value := os.Getenv(l.variable)
		if n, err := strconv.Atoi(value); err == nil && n > 1 {
			return fmt.Errorf("client: %s (%s=%s) has started this process as one of several, but "+
				"shoal has not: each would train alone, as rank 0 of a job of one; start the "+
				"program with shoal run -n %s in place of that launcher, or unset that variable "+
				"if each process is to be a job of one", l.name, l.variable, value, value)
		}
	}
	return nil
}
