/* The typed program behind an expr: a shared graph of operations, private to this folder.
 *
 * Nodes lie in one array, arguments before users, the root last; equal nodes exist once (hash-consed),
 * so common subexpressions are shared. The builder folds constants while nodes are made. A program is
 * immutable once ir__finish has copied it into its arena. Size is bounded by IR_MAX_NODES, hence the
 * depth of every recursion over it too. Nothing here knows text or values of captures. */
#ifndef EXPR_IR_H
#define EXPR_IR_H
#include "expr/expr.h"

enum { IR_MAX_NODES = 1024, IR_SLACK = 64, IR_TABLE = 4096 };

typedef enum ir_op {
#define S(id, spelling)                                                              IR_##id,
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative) IR_##id,
#include "expr/ops.def"
#undef S
#undef X
    IR_OP_COUNT
} ir_op;

typedef enum ir_form { IR_STRUCTURAL, IR_PREFIX, IR_INFIX, IR_CALL, IR_CAST } ir_form;
typedef struct ir_op_info {
    const char *spelling;
    uint8_t form, arity, argument, result; /* ir_form; expr_type */
} ir_op_info;
extern const ir_op_info ir__ops[IR_OP_COUNT];

/* Slots of IR_VAR, and the bits (1 << slot) of what a value depends on. */
enum { IR_B, IR_H, IR_Q, IR_KV, IR_S, IR_VAR_COUNT };
extern const char *const ir__var_names[IR_VAR_COUNT];

typedef union ir_val { /* booleans are 0 or 1 in i */
    int64_t i;
    float f;
} ir_val;

typedef struct ir_node {
    uint8_t op, type, n_args;
    uint8_t uses;               /* 1 << slot for each index variable below */
    uint8_t has_load;           /* a load is this node or lies below it */
    int16_t slot;               /* capture (SCALAR, LOAD) or variable (VAR) */
    int16_t arg[EXPR_MAX_NDIM]; /* unused entries repeat arg[0] */
    ir_val k;                   /* CONST */
} ir_node;

typedef struct ir_prog {
    const ir_node *node;
    int n; /* the root is n - 1 */
} ir_prog;

struct expr {
    arena *memory;
    expr_role role;
    char *source;
    expr_decl *decls;
    int n_decls;
    ir_prog prog;
    const struct expr_lanes *lanes; /* loops of the tile interpreter for this processor */
};

typedef struct ir_build {
    ir_node node[IR_MAX_NODES + IR_SLACK];
    int16_t table[IR_TABLE]; /* node + 1, 0 empty */
    int n;                   /* the caller stops adding beyond IR_MAX_NODES */
} ir_build;

/* Makers return the node's number: an equal older node, a folded constant or a new one. */
int ir__int(ir_build *b, int64_t v);
int ir__float(ir_build *b, float v);
int ir__bool(ir_build *b, int v);
int ir__const(ir_build *b, expr_type type, ir_val v);
int ir__var(ir_build *b, int slot);
int ir__scalar(ir_build *b, int slot, expr_type type);
int ir__load(ir_build *b, int slot, expr_type type, const int *index, int n);
int ir__op(ir_build *b, ir_op op, int x, int y); /* element-wise; y ignored for arity 1 */
int ir__and(ir_build *b, int x, int y);
int ir__or(ir_build *b, int x, int y);
int ir__select(ir_build *b, int c, int x, int y); /* x and y of one type */

/* Copies what root needs into a, root last. */
MUST_CHECK err ir__finish(const ir_build *b, int root, arena *a, ir_prog *out);
/* A copy with captured scalars replaced by env's values, folded again. */
MUST_CHECK err ir__bind(const ir_prog *p, const expr_decl *decls, const expr_env *env, arena *a,
                        ir_prog *out);
/* ERR_INTERNAL when an invariant of the graph is broken. */
MUST_CHECK err ir__verify(const ir_prog *p, const expr_decl *decls, int n_decls);
/* The definition of an element-wise operation. */
ir_val ir__apply(ir_op op, ir_val x, ir_val y);
/* The operation a spelling means for arguments of a type; IR_OP_COUNT when there is none. */
ir_op ir__find(ir_form form, const char *spelling, size_t n, expr_type argument);

/* Compiles text into a builder: expr_parse.c. */
MUST_CHECK err ir__parse(ir_build *b, expr_role role, const char *text, const expr_decl *decls,
                         int n_decls, int *root);

#endif
