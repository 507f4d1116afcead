package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/zoo"
	"github.com/shoal-ml/shoal/internal/cli"
)

// The models that shoal plan reads, or makes by formula. One goroutine runs what is here, that of
// the command, so nothing is locked.

// zooPrefix begins the names of models by formula.
const zooPrefix = "zoo:"

// zooMicros are the samples of micro-batches for which models by formula have points.
var zooMicros = []int{1, 2, 4, 8, 16, 32}

// readModel reads the model in a file, or makes that of a name such as zoo:llama-8b for the devices
// of a cluster, which is that of a running job where job names one. The text is what identifies the
// model.
func readModel(name string, c *cluster.Cluster, job string) (text []byte, m *model.Model,
	err error) {
	short, byFormula := strings.CutPrefix(name, zooPrefix)
	if !byFormula {
		return cli.ReadFile(name, model.MaxBytes, model.Parse)
	}
	shape, err := zoo.Find(short)
	if err != nil {
		return nil, nil, cli.AsUsage(err)
	}
	devices, err := zoo.Devices(c)
	if err != nil && job != "" {
		err = fmt.Errorf("%w; of its hosts job %s says only the kinds, as --kind of shoal run and "+
			"shoal agent state them: give a file with --cluster to say more", err, job)
	}
	if err != nil {
		return nil, nil, cli.AsUsage(err)
	}
	m = shape.Model(devices, zooMicros)
	text, err = json.Marshal(m)
	return text, m, err
}

// printZoo lists the models by formula. It fails if there are flags, which say nothing of a list.
func printZoo(out io.Writer, flags *pflag.FlagSet) error {
	var err error
	flags.Visit(func(flag *pflag.Flag) {
		err = cmp.Or(err, cli.RefuseFlags(flags, "a model that is planned", flag.Name))
	})
	if err != nil {
		return err
	}
	rows := [][]string{{"MODEL", "PARAMETERS", "LAYERS", "TOKENS", "TFLOP A SAMPLE", ""}}
	for _, s := range zoo.Shapes() {
		rows = append(rows, []string{zooPrefix + s.Name,
			parameterText(s.Parameters()), strconv.Itoa(s.Blocks + 2),
			strconv.Itoa(s.Context), fmt.Sprintf("%.0f", s.Operations()/1e12), s.Title})
	}
	return cli.Table(out, rows)
}

// parameterText writes a number of parameters as names of models do, such as 8.03B.
func parameterText(n int64) string {
	if n < 1e9 {
		return fmt.Sprintf("%.3gM", float64(n)/1e6)
	}
	return fmt.Sprintf("%.4gB", float64(n)/1e9)
}
