package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/decide/planner/importer"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/plural"
)

// newImportCommand returns the command shoal plan import.
func newImportCommand() *cobra.Command {
	var out, clusterOut string
	var sources strings.Builder
	for _, s := range importer.Sources() {
		fmt.Fprintf(&sources, "  %-12s %s\n", s.Name, s.What)
	}
	cmd := &cobra.Command{
		Use:   "import SOURCE FILE -o MODEL",
		Short: "Make a model of a file in which another planner keeps what it measured",
		Long: cli.Help(`Make a model of a file in which another planner keeps what it measured. What such files are known to
have wrong or to leave out is replaced by rules, and each that was used is told. Sources are

`+sources.String(), cli.ExitCodes, "plans"),
		Example: `  shoal plan import pipedream graph.txt -o gnmt.model.json
  shoal plan gnmt.model.json --cluster cluster.json --batch 32   plan what was imported
  shoal plan import --help                                       which sources there are`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			all := importer.Sources()
			at := slices.IndexFunc(all, func(s importer.Source) bool { return s.Name == args[0] })
			switch {
			case at < 0:
				return cli.Usagef("there is no source %q; there are:\n%s", args[0],
					strings.TrimSuffix(sources.String(), "\n"))
			case out == "":
				return cli.Usagef("say where the model goes: -o x.model.json")
			}
			return importFile(cmd.OutOrStdout(), all[at], args[1], out, clusterOut)
		},
	}
	cmd.Flags().StringVarP(&out, "out", "o", "", "write the model to this file")
	cmd.Flags().StringVar(&clusterOut, "cluster-out", "",
		"write the machines to this file, if the source has them")
	return cmd
}

// importFile reads a file of a source, writes what it has, and tells what was changed.
func importFile(to io.Writer, source importer.Source, file, out, clusterOut string) error {
	_, got, err := read(file, importer.MaxBytes, source.Read)
	if err != nil {
		return err
	}
	if clusterOut != "" && got.Cluster == nil {
		return cli.Usagef("--cluster-out=%s: %s has no machines", clusterOut, file)
	}
	if err := writeJSON(out, got.Model); err != nil {
		return err
	}
	if clusterOut != "" {
		if err := writeJSON(clusterOut, got.Cluster); err != nil {
			return err
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", out, plural.Of(len(got.Model.Layers), "layer"))
	for _, quirk := range got.Quirks {
		fmt.Fprintf(&b, "- %s\n", quirk)
	}
	_, err = io.WriteString(to, b.String())
	return err
}

// writeJSON writes a value to a file.
func writeJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return err
	}
	return durable.Write(file, append(text, '\n'))
}
