/* The typed program behind an expr: a shared graph of operations, private to this folder.
 *
 * Nodes lie in one array, arguments before users; equal nodes exist once (hash-consed), so common
 * subexpressions are shared. Constants are folded and identities applied while nodes are made (ir_algebra.c).
 * A program is immutable once ir__finish has copied it into its arena and verified it, as every pass
 * ends. Size is bounded, hence the depth of every recursion over it too. Nothing here knows text or
 * values of captures. */
#ifndef EXPR_IR_H
#define EXPR_IR_H
#include "expr/expr.h"

/* IR_MAX_NODES: of a text. With IR_SLACK: of any program made from it without its derivative, which has IR_MAX_GRAD. */
enum { IR_MAX_NODES = 1024, IR_SLACK = IR_MAX_NODES + 64, IR_MAX_GRAD = 8192 };

typedef enum ir_op {
#define S(id, spelling)                                                                    IR_##id,
#define X(id, spelling, form, arity, arguments, result, value, interval, derivative, cuda) IR_##id,
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
    uint8_t affine;             /* integer: slope_q * q + slope_kv * kv + what names neither */
    uint8_t diagonal;           /* names q and kv through q - kv alone */
    int16_t slot;               /* capture (SCALAR, LOAD) or variable (VAR) */
    int16_t arg[EXPR_MAX_NDIM]; /* unused entries repeat arg[0] */
    ir_val k;                   /* CONST */
    int64_t slope_q, slope_kv;  /* of affine nodes, modulo 2^64 as all integers */
} ir_node;

/* What a value depends on inside a tile, where b and h stand still. */
typedef enum ir_class {
    IR_FIXED,    /* neither q nor kv: once per tile */
    IR_BY_Q,     /* once per query */
    IR_BY_KV,    /* once per key */
    IR_DIAGONAL, /* q - kv alone: once per diagonal */
    IR_CELL      /* anything else, and all that names s */
} ir_class;
ir_class ir__class(const ir_node *n);

typedef struct ir_prog {
    const ir_node *node;
    int n; /* the root of a program with one is n - 1 */
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
    ir_node *node; /* [capacity] */
    int n, capacity;
    int16_t *table; /* [slots] node + 1, 0 empty; a power of two at least twice capacity */
    int slots;
} ir_build;

/* An empty builder for so many nodes, freed with mem_free. The caller stops adding before they run out. */
MUST_CHECK err ir__build_new(ir_build **out, int capacity);

/* Makers return the node's number: an equal older node, a folded constant or a new one. */
int ir__int(ir_build *b, int64_t v);
int ir__float(ir_build *b, float v);
int ir__bool(ir_build *b, int v);
int ir__const(ir_build *b, expr_type type, ir_val v);
int ir__var(ir_build *b, int slot);
int ir__scalar(ir_build *b, int slot, expr_type type);
int ir__load(ir_build *b, int slot, expr_type type, const int *index, int n);
int ir__node(ir_build *b,
             ir_node n); /* as it is, without rewriting; facts and spare arguments are filled in */
int ir__op(ir_build *b, ir_op op, int x, int y); /* element-wise; y ignored for arity 1 */
int ir__and(ir_build *b, int x, int y);
int ir__or(ir_build *b, int x, int y);
int ir__select(ir_build *b, int c, int x, int y); /* x and y of one type */

/* Copies what root needs into a, root last. */
MUST_CHECK err ir__finish(const ir_build *b, int root, arena *a, ir_prog *out);
/* The same for several roots, whose numbers become those of the copy; root -1 stays -1. */
MUST_CHECK err ir__finish_all(const ir_build *b, int *root, int n_roots, arena *a, ir_prog *out);
/* Node n of a program made again in a builder: at[] are the places of the program's nodes there. */
int ir__copy_node(ir_build *b, const ir_node *n, const int16_t *at);
/* A copy with captured scalars replaced by env's values, folded again. */
MUST_CHECK err ir__bind(const ir_prog *p, const expr_decl *decls, const expr_env *env, arena *a,
                        ir_prog *out);
/* ERR_INTERNAL when an invariant of the graph is broken: order, types, arities, facts. decls NULL: captures are not looked at;
 * so every program that ir__finish makes is checked, whichever pass made it. */
MUST_CHECK err ir__verify(const ir_prog *p, const expr_decl *decls, int n_decls);
/* The definition of an element-wise operation. */
ir_val ir__apply(ir_op op, ir_val x, ir_val y);
/* The operation a spelling means for arguments of a type; IR_OP_COUNT when there is none. */
ir_op ir__find(ir_form form, const char *spelling, size_t n, expr_type argument);

/* Compiles text into a builder: expr_parse.c. */
MUST_CHECK err ir__parse(ir_build *b, expr_role role, const char *text, const expr_decl *decls,
                         int n_decls, int *root);

#endif
